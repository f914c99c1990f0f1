"""Images on real llama.cpp: projectors of every kind, with random weights, beside a random text model."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from cobali_ray.backend import library
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.media import Image, place_of
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import (
    CacheFullError,
    ConfigError,
    InternalError,
    InvalidImageError,
    UnsupportedParameterError,
)
from cobali_ray.testing import EventRecorder, FakeClock
from cobali_workloads.models import writer
from cobali_workloads.models.shapes import ModelShape
from cobali_workloads.models.vocabulary import TrainedVocabulary
from tests.projectors import png, write_projector

pytestmark = pytest.mark.model

KINDS = ("mlp", "gemma3", "qwen2vl_merger")
"""Causal rows, rows that see each other, and positions in two dimensions."""
N_CTX, N_SLOTS, BUDGET, CHUNK = 512, 4, 132, 128
NEAR_TIE = 0.01
"""Of logprobs; how a processor rounds makes a third of that."""
TEXT = tuple(range(100, 120))
BEHIND = tuple(range(300, 310))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return, by kind, a text model and a projector for it; one kind needs another architecture."""
    folder = tmp_path_factory.mktemp("images")
    return {
        kind: (text_model(folder, kind), write_projector(folder / f"{kind}.gguf", kind)) for kind in KINDS
    }


def text_model(folder, kind):
    """Write a small random model that takes the rows of a kind of projector."""
    spatial = kind == "qwen2vl_merger"
    path = folder / ("spatial.gguf" if spatial else "plain.gguf")
    if path.exists():
        return path
    shape = ModelShape(n_layers=3, width=256, n_heads=4, n_kv_heads=2, ffn_width=512, n_vocab=4096)
    describe = writer._describe

    def describe_positions(file, *args):
        describe(file, *args)
        file.add_rope_dimension_sections([8, 12, 12, 0])

    with pytest.MonkeyPatch.context() as patch:
        if spatial:
            patch.setattr(writer, "_ARCHITECTURE", "qwen2vl")
            patch.setattr(writer, "_describe", describe_positions)
        vocabulary = TrainedVocabulary().load(shape.n_vocab)
        writer.write_model(path, "t", shape, "F16", vocabulary, seed=0, progress=lambda _: None)
    return path


class Bench:
    """An engine with a projector; `ask` runs requests to their end."""

    def __init__(self, files, *, host=0, min_prefix=8, **changes):
        path, mmproj = files
        asked = {"flash_attn": "off"} | changes
        self.backend = LlamaBackend(
            LlamaConfig(
                path=path,
                n_slots=N_SLOTS,
                n_ctx=N_CTX,
                n_batch=BUDGET,
                n_threads=1,
                mmproj=mmproj,
                **asked,
            )
        )
        limits = EngineLimits(
            n_slots=N_SLOTS,
            n_ctx_slot=self.backend.n_ctx_slot,
            n_cells=self.backend.n_cells,
            token_budget=BUDGET,
            prefill_chunk=CHUNK,
            min_prefix=min_prefix,
            copies=self.backend.copies,
            shares=self.backend.shares,
            dense=self.backend.dense,
            n_host_cells=host,
            cell_bytes=self.backend.measure_cell() if host else 0,
        )
        self.recorder = EventRecorder()
        self.engine = Engine(self.backend, limits, FakeClock(step_s=0.001), self.recorder)

    def ask(self, *requests):
        """Return each answer's tokens and its end, after all have run side by side."""
        sequences = []
        for asked in requests:
            request = self.engine.images.expand(asked) if asked.images else asked
            sequences.append(self.engine.submit(request, ready=not request.rows))
            if request.rows:
                self.engine.ready(sequences[-1], None, self.engine.images.encode(request, request.images))
        while self.engine.has_work:
            self.engine.tick()
            self.engine.scheduler.check()
        ends = [end for one in sequences for end in self.recorder.ends(one.request_id)]
        assert [end.error for end in ends] == [None] * len(ends)
        return [(one.tokens[one.n_prompt :].tolist(), end) for one, end in zip(sequences, ends, strict=True)]

    def answer(self, request):
        ((tokens, _),) = self.ask(request)
        return tokens

    def sure(self, request_id):
        """Return an answer's tokens before the first near-tie, which may fall otherwise in other company."""
        said = [p for e in self.recorder.events[request_id] if isinstance(e, Delta) for p in e.logprobs or ()]
        ahead = [one.top[0][2] - one.top[1][2] for one in said]
        n_sure = next((i for i, lead in enumerate(ahead) if lead < NEAR_TIE), len(said))
        return [one.token_id for one in said[:n_sure]]


@pytest.fixture
def bench(files):
    benches = []

    def make(kind, **changes):
        benches.append(Bench(files[kind], **changes))
        return benches[-1]

    yield make
    for one in benches:
        one.backend.close()


def asked(name, *parts, max_tokens=8, **changes):
    """Return a request of tokens and image files, in this order."""
    images = tuple(
        Image(part, f"image {i}") for i, part in enumerate(p for p in parts if isinstance(p, bytes))
    )
    places = iter(map(place_of, images))
    prompt = [t for part in parts for t in ([next(places)] if isinstance(part, bytes) else part)]
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, n_logprobs=3)
    return Request(
        request_id=name,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        images=images,
        **{"sampling": sampling} | changes,
    )


def picture(seed=0, size=(64, 48)):
    return png(*size, seed=seed)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_seen_before_is_not_computed_again(bench, kind):
    one = bench(kind)
    ((first, end),) = one.ask(asked("a", TEXT, picture(), BEHIND))
    assert end.stats.n_cached == 0
    ((again, end),) = one.ask(asked("b", TEXT, picture(), BEHIND))
    assert (again, end.stats.n_cached) == (first, end.stats.n_prompt - 2)
    ((_, end),) = one.ask(asked("c", TEXT, picture(1), BEHIND))
    assert len(TEXT) <= end.stats.n_cached < end.stats.n_prompt - len(BEHIND) - 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_goes_on_behind_its_image(bench, kind):
    """The next turn begins from the cache, at the positions behind the image; so does a copy of it."""
    fresh, kept = bench(kind, min_prefix=0), bench(kind)
    turn = (TEXT, picture(), BEHIND)
    said = tuple(kept.answer(asked("a", *turn)))
    more = [asked(f"b{i}", *turn, said, tuple(range(400 + i, 420 + i))) for i in range(3)]
    answers = kept.ask(*more)
    assert all(end.stats.n_cached >= len(TEXT) + len(BEHIND) for _, end in answers)
    assert [tokens for tokens, _ in answers] == [fresh.answer(one) for one in more]


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_beside_an_image_changes_nothing(bench, kind):
    one, crowd = bench(kind, min_prefix=0), bench(kind, min_prefix=0)
    requests = [
        asked("a", TEXT, picture(0), BEHIND),
        asked("b", tuple(range(500, 700))),
        asked("c", picture(1), BEHIND, picture(2), TEXT),
        asked("d", TEXT, picture(0), BEHIND, max_tokens=20),
    ]
    for request in requests:
        one.answer(request)
    for request, (tokens, _) in zip(requests, crowd.ask(*requests), strict=True):
        sure = one.sure(request.request_id)
        assert (len(sure) >= 4, tokens[: len(sure)]) == (True, sure)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kv": "unified"}, id="unified"),
        pytest.param({"flash_attn": "on"}, id="flash", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cache_takes_images(bench, kind, changes):
    one = bench(kind, **changes)
    ((first, _),) = one.ask(asked("a", TEXT, picture(0), BEHIND))
    answers = one.ask(*[asked(f"b{i}", TEXT, picture(0), BEHIND) for i in range(3)])
    assert all(end.stats.n_cached > len(TEXT) + 8 for _, end in answers)
    assert all(tokens[:2] == first[:2] for tokens, _ in answers)


def test_a_device_that_picks_candidates_takes_images(bench):
    one = bench("mlp", flash_attn="on", device_sampling="on")
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    requests = [asked(f"r{i}", TEXT, picture(i), BEHIND, sampling=greedy) for i in range(3)]
    answers = [tokens for tokens, _ in one.ask(*requests, asked("t", TEXT, sampling=greedy))]
    assert len({tuple(tokens) for tokens in answers}) == 4


def test_rows_that_are_not_there_end_one_request_and_no_process(bench):
    one = bench("gemma3")
    request = one.engine.images.expand(asked("short", TEXT, picture(), BEHIND))
    sequence = one.engine.submit(request, ready=False)
    rows = one.engine.images.encode(request, request.images)
    short = {key: found._replace(values=found.values[:-1]) for key, found in rows.items()}
    one.engine.ready(sequence, None, short)
    assert one.answer(asked("whole", TEXT, picture(), BEHIND))
    (end,) = one.recorder.ends("short")
    assert isinstance(end.error, InternalError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_is_full_takes_back_what_an_image_computed(bench, kind, monkeypatch):
    """The tokens of a tick find no room when its images are computed already: the tick is tried again."""
    one = bench(kind, kv="unified", min_prefix=0)
    first = one.answer(asked("a", TEXT, picture(), BEHIND))
    backend, n_refused, computed = one.backend, [], []

    def count(span, rows, seq_id, passes=backend._images.compute):
        computed.append(span)
        return passes(span, rows, seq_id)

    def full(batch, n_rows, compute=backend._compute):
        if computed and not n_refused:
            n_refused.append(batch.n_tokens)
            raise CacheFullError("full")
        compute(batch, n_rows)

    monkeypatch.setattr(backend, "_compute", full)
    monkeypatch.setattr(backend._images, "compute", count)
    text = asked("text", (*TEXT, *TEXT, *TEXT), max_tokens=12)
    (again, _), _ = one.ask(asked("b", TEXT, picture(), BEHIND), text)  # the younger one gives way
    assert n_refused
    assert len(computed) > 1
    assert again[:2] == first[:2]


def test_host_memory_keeps_images_like_tokens(bench):
    one = bench("mlp", host=4096)
    wide = tuple(range(1000, 1100))
    first = one.answer(asked("a", TEXT, picture(), wide, BEHIND))
    for i in range(2 * N_SLOTS):
        one.ask(
            *[asked(f"x{i}{j}", tuple(range(2000 + 40 * (i + j), 2400 + 40 * (i + j)))) for j in range(4)]
        )
    ((again, end),) = one.ask(asked("b", TEXT, picture(), wide, BEHIND))
    assert (again, end.stats.cached_from) == (first, "host")
    assert end.stats.n_cached == 128


def test_an_answer_goes_on_behind_what_was_said(bench):
    """As after an engine's death: the next one has nothing but the request and the tokens told so far."""
    request = asked("a", TEXT, picture(), BEHIND, max_tokens=12)
    whole = bench("gemma3").answer(request)
    ((rest, _),) = bench("gemma3").ask(replace(request, sent_tokens=tuple(whole[:5]), attempt=1))
    assert rest == whole


def test_penalties_and_drafts_pass_over_images(bench):
    one = bench("mlp", speculation=True, flash_attn="on")
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, repetition_penalty=1.3)
    assert len(one.answer(asked("a", TEXT, picture(), TEXT, sampling=sampling))) == 8


@pytest.mark.parametrize(
    "image",
    [picture()[:200], b"\x89PNG\r\n\x1a\n" + bytes(100), b"GIF89a"],
    ids=["truncated", "nonsense", "head-only"],
)
def test_what_is_no_image_is_refused_and_named(bench, image):
    one = bench("mlp")
    with pytest.raises(InvalidImageError, match="image 0 cannot be read") as refusal:
        one.engine.images.expand(asked("a", TEXT, image, BEHIND))
    assert refusal.value.param == "image 0"
    assert one.answer(asked("b", TEXT, picture(), BEHIND))


def test_no_program_is_asked_about_an_image(bench, tmp_path, monkeypatch):
    """mtmd would have ffprobe look at what it cannot decode."""
    called = tmp_path / "called"
    for name in ("ffprobe", "ffmpeg"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} >> {called}\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    projector = bench("mlp").backend.projector
    assert projector.read(picture()[:200]) is None
    assert projector.read(b"RIFF\0\0\0\0WEBPVP8 " + bytes(50)) is None
    assert not called.exists()


def test_an_image_that_no_pass_can_compute_is_refused(bench):
    one = bench("qwen2vl_merger")
    with pytest.raises(InvalidImageError, match="token_budget"):
        one.engine.images.expand(asked("a", TEXT, picture(size=(400, 400)), BEHIND))


def test_a_model_without_a_projector_sees_no_images(bench, files):
    blind = bench("mlp")
    blind.engine.images._projector = None
    with pytest.raises(UnsupportedParameterError, match="does not accept images"):
        blind.engine.images.expand(asked("a", TEXT, picture(), BEHIND))


def test_a_projector_for_another_model_is_refused(tmp_path, files):
    other = write_projector(tmp_path / "other.gguf", "mlp", n_out=512)
    with pytest.raises(ConfigError, match="mismatch"):
        Bench((files["mlp"][0], other))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_computed_as_llama_cpp_itself_computes_them(bench, kind):
    """The oracle is mtmd's own helper, which encodes and decodes an image at once."""
    one, image = bench(kind, min_prefix=0), picture()
    (tokens, _) = one.ask(asked("a", TEXT, image, BEHIND, max_tokens=1))[0]
    (delta,) = [event for event in one.recorder.events["a"] if isinstance(event, Delta)]
    logits = mtmd_logits(one.backend, image)
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    (found,) = delta.logprobs
    assert [int(logits.argmax())] == tokens
    assert found.logprob == pytest.approx(logprobs[tokens[0]], abs=1e-4)
    best = np.argsort(-logits)[:3].tolist()
    assert [token for token, *_ in found.top] == best
    assert [logprob for *_, logprob in found.top] == pytest.approx(logprobs[best].tolist(), abs=1e-4)


def mtmd_logits(backend, image):
    """Return the logits behind TEXT, an image and BEHIND, computed without any of our own code."""
    lc, mtmd, projector = backend._lc, library.load_mtmd(), backend.projector
    context, slot = backend._context, N_SLOTS - 1
    place = ctypes.c_int32(0)

    def decode(tokens):
        start = place.value
        batch = lc.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = slot, i == len(tokens) - 1
        batch.n_tokens = len(tokens)
        assert lc.llama_decode(context, batch) == 0
        lc.llama_batch_free(batch)
        place.value = start + len(tokens)

    decode(TEXT)
    with projector._chunks(image) as chunks:
        for chunk in chunks:
            arguments = (place.value, slot, BUDGET, False, ctypes.byref(place))
            assert mtmd.mtmd_helper_eval_chunk_single(projector._context, context, chunk, *arguments) == 0
    decode(BEHIND)
    return np.ctypeslib.as_array(lc.llama_get_logits(context), (backend.n_vocab,)).copy()
