"""Every architecture family, with everything on, gives the answers that llama.cpp alone gives.

A random model of each (archs.py) is served by the engine that `open_engine` makes: prompts that begin alike,
edited and repeated ones, next turns, streams that stand back and go on, answers that another engine began,
and a second engine on the folder of the first. Each answer is then read by a fresh context of
llama-cpp-python, with nothing reused.
"""

import random
import re
from array import array
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import archs
import numpy as np
import pytest

from cobali_ray.backend import library
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine import opening
from cobali_ray.engine.context import DIFFUSION
from cobali_ray.engine.opening import open_engine
from cobali_ray.errors import ConfigError
from cobali_ray.models.registry import describe
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import EventRecorder, FakeClock

pytestmark = pytest.mark.model

N_CTX = 256
TYPES = {"f16": 1, "q8_0": 8}


@pytest.fixture
def alone_on():
    """Open llama.cpp alone on a model; it is closed when the test ends."""
    opened = []
    yield lambda *args: opened.append(Alone(*args)) or opened[-1]
    for alone in opened:
        alone.close()


def drawn(seed, n):
    rng = random.Random(seed)
    return tuple(rng.randrange(archs.N_VOCAB - 8) for _ in range(n))


class Served:
    """An engine as the settings say, and what it answers."""

    def __init__(self, path, folder, **settings):
        asked = {
            "n_slots": 3,
            "n_ctx": N_CTX,
            "n_threads": 1,
            "prefill_chunk": 128,
            "host_cache_mib": 64,
            "disk_cache_dir": folder,
            "speculation": "auto",
        }
        settings = EngineSettings(model=str(path), **(asked | settings))
        self.sink = EventRecorder()
        with patch.object(opening, "calibration", return_value=[]):  # what this machine takes decides nothing
            self.engine = open_engine(settings, self.sink, clock=FakeClock(step_s=0.001), path=path)
        self.sequences, self.ticks, self.calls = {}, [], Counter()
        self.engine.scheduler.pacer.model.runs_s = len  # a second each: every gap is closed
        for name in ("copy", "swap", "restore_state"):
            self.count(name, getattr(self.engine.backend, name))

    def count(self, name, method):
        def counted(*args):
            self.calls[name] += 1
            method(*args)

        setattr(self.engine.backend, name, counted)

    def submit(self, request_id, prompt, *, max_tokens=16, **fields):
        sampling = SamplingParams(temperature=0.0, n_logprobs=0, ignore_eos=True)
        request = Request(
            request_id=request_id, prompt=prompt, max_tokens=max_tokens, sampling=sampling, **fields
        )
        self.sequences[request_id] = self.engine.submit(request)

    def run(self, n_ticks=None):
        while self.engine.has_work and n_ticks != 0:
            self.ticks.append(self.engine.tick())
            self.engine.scheduler.check()
            n_ticks = None if n_ticks is None else n_ticks - 1

    def ask(self, request_id, prompt, **fields):
        self.submit(request_id, prompt, **fields)
        self.run()
        return tuple(self.sequences[request_id].tokens)

    def total(self, name):
        return sum(getattr(tick, name) for tick in self.ticks if tick)

    @property
    def n_cached(self):
        return sum(sequence.n_cached for sequence in self.sequences.values())

    def logprobs(self, request_id):
        events = self.sink.events[request_id]
        return [one for event in events if isinstance(event, Delta) for one in event.logprobs]

    def close(self):
        self.engine.flush()
        self.engine.close()


class Alone:
    """llama.cpp, one text at a time, in a cache that holds nothing else."""

    def __init__(self, path, kind, flash_attn):
        self.noise = 0.01 if flash_attn == "off" else 0.1  # which sums in f16
        self.lc = lc = library.load()
        on_the_cpu = lc.llama_model_default_params()
        on_the_cpu.n_gpu_layers = 0
        self.model = lc.llama_model_load_from_file(str(path).encode(), on_the_cpu)
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = TYPES[kind]
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[flash_attn]
        self.context = lc.llama_init_from_model(self.model, params)

    def logprobs(self, tokens):
        """Return what follows each token, as logs of probabilities."""
        lc, n = self.lc, len(tokens)
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
        batch = lc.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert lc.llama_decode(self.context, batch) == 0
        lc.llama_batch_free(batch)
        rows = np.ctypeslib.as_array(lc.llama_get_logits(self.context), (n, archs.N_VOCAB)).astype(float)
        return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))

    def close(self):
        self.lc.llama_free(self.context)
        self.lc.llama_model_free(self.model)


FIRST = drawn(1, 150)


def converse(served):
    """Send what people send: prompts share beginnings, which other slots hold or held."""
    said = served.ask("first", FIRST, max_tokens=24)
    served.submit("repeat", FIRST)
    served.submit("edited", FIRST[:90] + drawn(2, 30), max_tokens=40)
    served.run(6)
    served.submit("begins like a busy one", FIRST[:70] + drawn(3, 21))
    served.run()
    turn = served.ask("next turn", said + drawn(4, 20))
    served.ask("edited turn", turn[:140] + drawn(5, 12))
    once = drawn(6, 60)
    served.ask("once", once, max_tokens=40)
    served.ask("twice", once, max_tokens=40)  # its drafts are what it said before
    for i in range(3):
        served.submit(f"other {i}", drawn(10 + i, 100), priority=5, max_tokens=30)
    served.run(8)
    served.submit("urgent", FIRST[:80] + drawn(7, 12), priority=-5)
    served.run()
    served.ask("after others", FIRST[:130] + drawn(8, 9))
    for i in range(3):
        served.submit(f"beside {i}", drawn(20 + i, 40))
    served.run(4)
    (gone,) = [s.request_id for s in served.engine.slots.running if s.seq_id == 1]
    served.engine.cancel(gone)  # which leaves a gap between the others
    del served.sequences[gone]
    served.run()
    whole = served.ask("began here", drawn(9, 75))
    served.ask("went on", whole[:75], sent_tokens=whole[75:81])


def differences(served, alone):
    """Return what is wrong: how far another token is above the one drawn, and how far its logprob is off."""
    wrong, ends = {}, list(served.engine.backend.end_tokens)
    for request_id, sequence in served.sequences.items():
        tokens, told = tuple(sequence.tokens), served.logprobs(request_id)
        start = sequence.n_prompt + len(sequence.request.sent_tokens)
        assert [one.token_id for one in told] == list(tokens[start:])
        rows = alone.logprobs(tokens)[start - 1 : -1]
        drawn_ones = rows[np.arange(len(rows)), tokens[start:]]
        off = np.abs(drawn_ones - [one.logprob for one in told]).max()
        rows[:, ends] = -np.inf  # these are not drawn
        above = (rows.max(axis=1) - drawn_ones).max()
        if max(above, off) > alone.noise:
            wrong[request_id] = round(float(above), 4), round(float(off), 4)
    return wrong


TABLE = (Path(__file__).parents[2] / "docs/models.md").read_text().partition("## Models that go back")[0]


def promised(arch, *, unified):
    """Return what the table of models says of an architecture: how it reuses, what it keeps, if it drafts."""
    (line,) = [line for line in TABLE.splitlines() if f"| `{arch}` |" in line]
    split, shared, keeps, drafts = [cell.strip() for cell in line.split("|")][4:8]
    reuses = shared if unified else split
    return reuses, keeps, drafts in {"yes", "split" * (not unified)}


BEGINS = {"yes": "anywhere", "at states": "at states", "no": "never"}
"""What the table says of reusing, in the words of `/v1/models` and of `cobali models show`."""


@pytest.mark.parametrize("family", archs.FAMILIES)
def test_a_file_tells_how_prompts_begin(models, family):
    shown = describe(models(family))
    assert shown["prompts_begin"] == BEGINS[promised(archs.FAMILIES[family].arch, unified=False)[0]]


def test_every_architecture_in_the_table_is_tested():
    listed = re.findall(r"\| `([\w-]+)` \|", TABLE)
    assert sorted(listed) == sorted(family.arch for family in archs.FAMILIES.values())


UNIFIED = {"kv": "unified", "kv_cells": 320}
QUANTISED = {"type_k": "q8_0", "type_v": "q8_0"}
DRAFTS = {"speculation": "auto"}
CONFIGS = {
    "defaults": {},
    "flash-off": {"flash_attn": "off"},
    "q8_0": QUANTISED,
    "unified": UNIFIED,
    "unified-q8_0": UNIFIED | QUANTISED,
}


WINDOWS = [name for name in archs.FAMILIES if name.startswith("window")]


OF_EACH_KIND = ("dense", "window", "latent", "compressed", "hybrid-delta", "recurrent")
"""A family of each kind of cache; the other way is tried of the two that are most alike and least alike."""
QUICK = {(family, "defaults") for family in OF_EACH_KIND} | {
    ("dense", "unified-q8_0"), ("hybrid-delta", "unified-q8_0"), ("dense", "flash-off"),
    ("moe-head", "defaults"), ("window", "drafts"),
}  # fmt: skip
"""All else is `thorough`."""


def case(family, config):
    return pytest.param(family, config, marks=() if (family, config) in QUICK else pytest.mark.thorough)


CASES = [case(family, config) for family in archs.FAMILIES for config in CONFIGS]
CASES += [case(window, "drafts") for window in WINDOWS]


def hold_everything(model, folder, family, config, open_alone, **where):
    """Have a family's model converse with everything on, `where` the settings say, and check all of it."""
    settings = CONFIGS.get(config, DRAFTS)
    reuses, keeps, drafts = promised(archs.FAMILIES[family].arch, unified="kv" in settings)
    if family in WINDOWS:
        settings = {"speculation": "off"} | settings
        if drafts := config == "drafts":
            reuses, keeps = "yes", "no"
    alone = open_alone(model, settings.get("type_k", "f16"), settings.get("flash_attn", "auto"))
    with closing(Served(model, folder, **settings, **where)) as served:
        assert served.engine.backend.overlaps == bool(where)
        told = served.engine.reuse  # which is what `/v1/models` says
        assert (told.begins, "disk" in told.tiers) == (BEGINS[reuses], keeps == "yes")
        converse(served)
        assert differences(served, alone) == {}
        assert served.total("n_preempted") > 0
        if reuses == "at states":
            assert served.calls["restore_state"] > 0
            assert served.n_cached > 300
        else:
            assert (served.calls["copy"] > 1, served.n_cached > 600) == (reuses == "yes", reuses == "yes")
        stays = "attention.sliding_window" in archs.FAMILIES[family].keys and reuses != "at states"
        assert (served.calls["swap"] > 0) == (not stays and "kv" not in settings)
        assert (served.total("n_host_hits") > 2 * (reuses == "yes")) == (keeps == "yes")
        reproducible = config == "flash-off" and not where
        n_expected = 9 if reuses == "yes" else 3  # the others' drafts are shorter
        assert (served.total("n_accepted") > n_expected) == (drafts and not reproducible)
    if keeps == "yes":  # on disk, too
        with closing(Served(model, folder, **(settings | where | {"n_slots": 2}))) as again:
            again.ask("first", FIRST, max_tokens=24)
            again.ask("edited", FIRST[:90] + drawn(2, 30))
            assert differences(again, alone) == {}
            assert again.total("n_disk_hits") > 0


@pytest.mark.parametrize(("family", "config"), CASES)
def test_with_everything_on_answers_are_those_of_llama_cpp_alone(models, alone_on, tmp_path, family, config):
    hold_everything(models(family), tmp_path, family, config, alone_on)


WITH_STATES = [
    "hybrid-delta",
    *(pytest.param(family, marks=pytest.mark.thorough) for family in ("window", "recurrent")),
]


@pytest.mark.parametrize("family", WITH_STATES)
def test_a_conversation_whose_answers_are_preempted_finds_what_it_had(models, tmp_path, family):
    """Others of a better class take all slots in the middle of each of ten answers, and leave their texts."""
    n_message, n_answer = 8, 20
    settings = {"n_ctx": 512, "n_slots": 2, "speculation": "off"}
    with closing(Served(models(family), tmp_path, **settings)) as served:
        prompt, turns = drawn(1, 150), []
        for turn in range(10):
            served.submit(f"turn {turn}", prompt, max_tokens=n_answer, priority=5)
            served.run(n_answer // 2)
            for i in range(2):
                served.submit(f"other {turn} {i}", drawn(100 + 2 * turn + i, 60), max_tokens=4)
            served.run()
            turns.append(served.sequences[f"turn {turn}"])
            prompt = (*turns[-1].tokens, *drawn(200 + turn, n_message))
        assert [one.n_preempted for one in turns] == [1] * 10
        assert min(one.n_cached / one.n_prompt for one in turns[1:]) >= 0.9
        n_others, n_again = 20 * 60, 2  # the token sampled last: with the message, and where it goes on
        assert served.total("n_prefill") <= 150 + n_others + 10 * (n_message + n_again)


def test_a_copy_made_at_the_next_pass_is_of_the_donor_as_it_was(models):
    """What windows copy that keep all cells, for drafts, they copy at the next pass: the donor may go on."""
    config = LlamaConfig(
        path=models("window"), n_slots=3, n_ctx=256, n_batch=256, n_threads=1, speculation=True
    )
    backend = LlamaBackend(config)
    texts = [array("i", drawn(i, 140)) for i in range(3)]

    def compute(*spans, sequences):
        batch = TickBatch(256)
        batch.fill(tuple(Span(*span) for span in spans), [texts[i] for i in sequences])
        backend.forward(batch)
        return backend._read_logits(len(spans)).copy()

    compute((0, 0, 60, True), (1, 0, 80, True), sequences=(0, 2))
    expected = compute((0, 60, 20, True), (1, 80, 20, True), sequences=(0, 2))
    backend.clear()
    compute((0, 0, 120, True), (2, 0, 120, True), sequences=(0, 2))
    backend.copy(0, 1, 60)
    backend.truncate(0, 0)
    backend.copy(2, 0, 80)
    backend.truncate(2, 10)
    logits = compute((0, 80, 20, True), (1, 60, 20, True), sequences=(2, 0))
    assert np.abs(logits[::-1] - expected).max() < 0.05
    backend.close()


@pytest.mark.parametrize("arch", sorted(DIFFUSION))
def test_what_is_refused_as_a_diffusion_model_is_one_for_llama_cpp(tmp_path, monkeypatch, arch):
    family = archs.FAMILIES["dense" if arch in {"dream", "llada"} else "moe"]
    monkeypatch.setitem(archs.FAMILIES, arch, replace(family, arch=arch))
    path, lc = archs.write(tmp_path / "m.gguf", arch), library.load()
    params = lc.llama_model_default_params()
    params.vocab_only = True
    model = lc.llama_model_load_from_file(str(path).encode(), params)
    assert lc.llama_model_is_diffusion(model)
    lc.llama_model_free(model)
    with pytest.raises(ConfigError, match="diffusion"):
        open_engine(EngineSettings(), print, path=path)


def test_latent_attention_has_keys_and_values_of_one_type(models):
    with pytest.raises(ConfigError, match=r"type_k: .* type_v"):
        open_engine(EngineSettings(type_k="q8_0"), print, path=models("latent"))
