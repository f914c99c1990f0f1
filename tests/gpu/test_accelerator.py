"""All that is served, with every layer on devices: the answers of llama.cpp alone on the CPU."""

import json
import os
import random
import signal
import subprocess
import sys
from array import array
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from jsonschema import validate
from numpy_bert import NumpyBert
from test_archs import CASES, Served, archs, converse, differences, hold_everything
from test_grammar import SCHEMA
from test_llama_adapters import ask
from test_llama_adapters import run as run_adapters
from test_llama_device import candidate_requests
from test_llama_embedding import TEXTS, random_texts, unit, vectors
from test_llama_engine import Run
from test_llama_head import answers_of
from test_llama_images import BEHIND, KINDS, TEXT, Bench, asked, picture
from test_llama_prompt_logprobs import PROMPTS, oracle, play
from test_llama_prompt_logprobs import requests as scored_requests

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import open_devices
from cobali_ray.backend.embedding_only import open_llama
from cobali_ray.backend.endpoint import is_endpoint
from cobali_ray.backend.fit import needs
from cobali_ray.backend.grammar import check
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, llama_config, open_backend
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings, read_settings
from cobali_workloads.offline import run_offline

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

GPU_NOISE = 0.2
"""Of logprobs, where other kernels than the CPU's compute them; a cell too few shows as 0.4 at least."""


@pytest.fixture
def compared(alone_on, devices):
    """Open llama.cpp alone, with what kernels of a GPU may differ by."""

    def open_alone(path, kind="f16", flash_attn="auto"):
        alone = alone_on(path, kind, flash_attn)
        if not all(map(is_endpoint, devices)):
            alone.noise = max(alone.noise, GPU_NOISE)
        return alone

    return open_alone


@pytest.mark.parametrize(("family", "config"), CASES)
def test_conversations_are_those_of_the_cpu(models, compared, devices, tmp_path, family, config):
    """Reuse, states, copies on the device, host memory, disk and drafts, in the order of a GPU."""
    hold_everything(models(family), tmp_path, family, config, compared, devices=devices)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"n_gpu_layers": 1}, id="one-layer"),
        pytest.param({"n_gpu_layers": 2}, id="two-layers"),
        pytest.param({"split_mode": "none"}, id="on-one-alone"),
        pytest.param({"split_mode": "tensor"}, id="tensor-parallel"),
        pytest.param({"tensor_split": (1.0, 3.0)}, id="unequal"),
        pytest.param({"tensor_split": (0.0, 1.0)}, id="all-on-the-second"),
    ],
)
def test_however_a_model_is_split_answers_are_the_same(models, compared, devices, tmp_path, how):
    if "tensor_split" in how and len(devices) != 2:
        pytest.skip("for two devices")
    with closing(Served(models("dense"), tmp_path, devices=devices, **how)) as served:
        assert served.engine.backend.overlaps == ("n_gpu_layers" not in how)
        converse(served)
        assert differences(served, compared(models("dense"))) == {}


@pytest.mark.parametrize("kv", ["split", "unified"])
def test_what_the_device_picks_is_what_the_host_draws(tiny, where, kv):
    asked = {"n_slots": 6, "chunk": 64, "budget": 72, "flash_attn": "on", "arrive_every": 2} | where
    runs = [
        Run(tiny, candidate_requests(20), device_sampling=which, unified=kv == "unified", **asked)
        for which in ("on", "off")
    ]
    assert runs[0].answers == runs[1].answers
    assert runs[0].ends() == runs[1].ends()


def test_a_grammar_holds(devices):
    settings = EngineSettings(
        model="builtin:tiny", n_slots=4, n_ctx=512, n_threads=1, device_sampling="on", devices=devices
    )
    grammar = check("p", "json_schema", json.dumps(SCHEMA), strict=True).grammar
    with closing(open_backend(settings, resolve("builtin:tiny"))) as backend:
        prompt = tuple(backend.words.tokenize("Weather?"))
        requests = [
            Request(
                request_id=str(i),
                prompt=prompt,
                max_tokens=300,
                sampling=SamplingParams(seed=i, temperature=1.0),
                grammar=grammar,
            )
            for i in range(8)
        ]
        report = run_offline(partial(engine_on, backend, settings), requests)
    assert not report.failed
    finished = [i for i, one in report.requests.items() if one.n_output < 300]
    assert finished
    for i in finished:
        validate(json.loads(report.texts[i]), SCHEMA)


def test_streams_of_several_adapters_say_what_each_says_on_the_cpu(tiny, adapters, where):
    """The adapter changes between passes, of which the last may still be under way."""
    config = LlamaConfig(
        path=tiny, n_slots=6, n_ctx=512, n_batch=256, n_threads=1, flash_attn="on",
        adapters=tuple(adapters.values()),
    )  # fmt: skip
    keys = ["", adapters["one"].key, adapters["two"].key]
    requests = [ask(f"r{i}", keys[i % 3], 40 + i) for i in range(9)]
    with closing(open_llama(replace(config, **where))) as backend:
        answers, n_changes = run_adapters(backend, requests)
    assert n_changes >= 3
    with closing(open_llama(config)) as backend:
        batch = TickBatch(backend.n_batch)
        for request in requests:
            answer = answers[request.request_id]
            tokens, n = array("i", (*request.prompt, *answer)), len(answer)
            backend.clear()
            backend.use(request.adapter)
            rows = []
            for at in range(len(request.prompt), len(tokens)):
                start = 0 if not rows else at - 1
                batch.fill((Span(0, start, at - start, sample=True),), [tokens])
                backend.forward(batch)
                rows.append(backend._read_logits(1)[0].copy())
            rows = np.array(rows)
            assert len(rows) == n == 24
            lacking = rows.max(axis=1) - rows[np.arange(n), answer]
            assert lacking.max() < 0.05 * np.abs(rows).max()


@pytest.mark.parametrize("family", ["moe-head", "hybrid-delta"])
def test_what_a_models_own_head_guesses_changes_no_answer(models, devices, family):
    on, likeliest = {"devices": devices}, SamplingParams(temperature=0.0)
    without, _ = answers_of(models(family), likeliest, speculation="off", **on)
    answers, n_guessed = answers_of(models(family), likeliest, speculation="auto", **on)
    assert answers == without
    assert n_guessed > 0


def test_prompts_are_scored_as_one_token_at_a_time_on_the_cpu(where):
    asked = {"n_slots": 4, "n_ctx": 512, "n_batch": 256, "n_threads": 1, "flash_attn": "on"}
    config = LlamaConfig(path=resolve("builtin:tiny"), **asked)
    with closing(open_llama(replace(config, device_sampling="on", **where))) as backend:
        scored = play(backend, scored_requests(), n_scored_rows=50)
    with closing(open_llama(config)) as backend:
        for i, tokens in enumerate(PROMPTS):
            first, *others = scored[str(i)][0]
            assert (first.token_id, first.logprob) == (tokens[0], None)
            known = [row[token] for row, token in zip(oracle(backend, tokens), tokens[1:], strict=True)]
            assert [one.token_id for one in others] == list(tokens[1:])
            off = np.array([one.logprob for one in others]) - known
            assert np.abs(off).max(initial=0) < 1.0
            assert abs(off.sum()) < 0.05 * max(len(off), 1)


def test_a_model_that_generates_embeds_beside_that_as_on_the_cpu(tiny, where):
    asked = {"n_slots": 4, "n_ctx": 1024, "n_batch": 256, "n_threads": 1}
    config = LlamaConfig(path=tiny, flash_attn="on", pooling="last", **asked)
    request, both = random_texts(12, n_vocab=4000, longest=700, seed=1), []
    for one in (config, replace(config, **where)):
        with closing(open_llama(one)) as backend:
            assert backend.generates
            both.append(np.array(vectors(backend.embedder, request, 37)))
    assert np.abs(both[0] - both[1]).max() < 0.02
    assert np.abs(both[0][0] - both[0][1]).max() > 0.1


def test_vectors_are_those_of_bert(where):
    path = resolve("builtin:synthetic-bert")
    config = LlamaConfig(path=path, n_slots=4, n_ctx=1024, n_batch=256, n_threads=1, **where)
    oracle = NumpyBert(path)
    with closing(open_llama(config)) as backend:
        request = EmbeddingRequest.of([backend.words.tokenize(text) for text in TEXTS], request_id="a")
        for number, row in enumerate(vectors(backend.embedder, request)):
            assert np.abs(row - unit(oracle.mean(request.text(number)))).max() < 2e-3


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_seen_as_on_the_cpu(files, where, kind):
    """Two images, one of them twice, and a text beside them; then the chat goes on behind its image."""
    turn = (TEXT, picture(0), BEHIND)
    first = [
        asked("a", *turn),
        asked("text", tuple(range(500, 700))),
        asked("two", picture(1), BEHIND, picture(0), TEXT),
    ]
    answers = []
    for settings in ({}, where):
        one = Bench(files[kind], flash_attn="on", **settings)
        with closing(one.backend):
            assert one.backend.overlaps == bool(settings)
            one.ask(*first)
            ((_, end),) = one.ask(asked("next turn", *turn, TEXT))
            assert end.stats.n_cached >= len(TEXT) + len(BEHIND)
            answers.append([one.sure(request_id) for request_id in ("a", "text", "two", "next turn")])
    for of_cpu, of_device in zip(*answers, strict=True):
        n = min(len(of_cpu), len(of_device))
        assert n >= 3
        assert of_device[:n] == of_cpu[:n]


def test_a_device_tells_its_memory_and_what_a_model_takes_of_it(tiny, devices):
    asked = {"model": "builtin:synthetic-tiny", "n_slots": 8, "n_ctx": 8192, "n_threads": 1}
    config = llama_config(read_settings(asked | {"devices": devices}), tiny)
    opened = open_devices(config)
    told = needs(config, opened)
    assert all(need.fits and need.weights and need.cells and need.buffers for need in told)
    free = [device.memory[0] for device in opened.used]
    with closing(LlamaBackend(config, devices=opened)):
        taken = [before - device.memory[0] for before, device in zip(free, opened.used, strict=True)]
    for need, n_bytes in zip(told, taken, strict=True):
        assert need.cells <= n_bytes < 2 * need.needed  # a worker that served before has room for the rest


CHILD = """
import sys
from pathlib import Path
from test_archs import FIRST, Served
served = Served(*map(Path, sys.argv[1:3]), devices=tuple(sys.argv[3:]))
served.submit("a", FIRST[:75], max_tokens=100)
served.run(12)
print(*served.sequences["a"].tokens, flush=True)
sys.stdin.read(1)
served.run()
"""


@pytest.mark.parametrize("dies", ["engine", "device"])
def test_an_answer_goes_on_after_a_death(models, compared, devices, workers, tmp_path, dies):
    """In a new engine on the same devices, which the old one left without a word; so does a GPU."""
    if dies == "device" and workers is None:
        pytest.skip("a GPU cannot be taken away here; a worker can")
    path, folder = models("dense"), str(Path(archs.__file__).parent)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])}
    command = [sys.executable, "-c", CHILD, str(path), str(tmp_path / "old"), *devices]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    ) as engine:
        lines = (line for line in iter(engine.stdout.readline, b"") if line.split(b" ")[0].isdigit())
        tokens = tuple(map(int, next(lines).split()))
        if dies == "engine":
            engine.kill()
        else:
            workers.end(devices[-1])
            engine.stdin.write(b"\n")  # it computes again, and finds nobody
            engine.stdin.flush()
            (loss,) = [line for line in engine.stdout.read().splitlines() if b"worker_lost" in line]
            assert devices[-1].encode() in loss, "it says which"
        assert engine.wait(60) == -(signal.SIGKILL if dies == "engine" else signal.SIGABRT)
    if dies == "device":
        workers.start(devices[-1])
    assert len(tokens) > 80
    with closing(Served(path, tmp_path / "new", devices=devices)) as served:
        whole = served.ask("a", tokens[:75], sent_tokens=tokens[75:], max_tokens=40)
        assert len(whole) == 115
        assert differences(served, compared(path)) == {}


def test_two_engines_take_turns_on_a_device(models, devices, tmp_path):
    """A model that is unloaded leaves the device to the next."""
    for i in range(3):
        with closing(Served(models("dense"), tmp_path / str(i), devices=devices)) as served:
            prompt = tuple(random.Random(i).randrange(100) for _ in range(40))
            assert len(served.ask("a", prompt)) == 56
