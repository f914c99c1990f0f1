"""Images without llama.cpp: what stands for them, where prompts may be cut, who waits for whom."""

import asyncio
import queue
import threading
import warnings
from array import array
from dataclasses import replace

import numpy as np
import pytest
from answers import OnEngine

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.backend.batch import ImagePart, ImageRows, TickBatch
from cobali_ray.backend.image_pass import Positions
from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.placement import SlotContents, choose_placement
from cobali_ray.core.messages import Submitted
from cobali_ray.core.plan.drafts import Draft, look_up
from cobali_ray.core.plan.plan import Span, cut_chunks
from cobali_ray.core.request.events import End
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.media import Image, Rows, ids_of, place_of, whole_prefix
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.images import ImageReader
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.errors import (
    DrainingError,
    InternalError,
    InvalidImageError,
    InvalidParameterError,
    LoadingError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
)
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import FakeClock

WAIT_S = 60
DIGEST = bytes(32)


def rows(start, length, *, whole=False):
    return Rows(start, length, DIGEST, 0, whole)


@pytest.mark.parametrize(("n", "expected"), [(3, 3), (4, 4), (5, 4), (9, 4), (10, 10), (15, 12), (99, 99)])
def test_a_prefix_ends_inside_no_image(n, expected):
    assert whole_prefix(n, [rows(4, 6), rows(12, 6)]) == expected


@pytest.mark.parametrize(
    ("chunk", "image", "expected"),
    [
        pytest.param((0, 20), rows(30, 9), (0, 20), id="before-the-image"),
        pytest.param((0, 20), rows(8, 9), (0, 8), id="up-to-the-image"),
        pytest.param((0, 7), rows(8, 9), (0, 6), id="never-leaves-one-token"),
        pytest.param((8, 20), rows(8, 9), (8, 9), id="the-image-alone"),
        pytest.param((8, 5), rows(8, 9), (8, 5), id="some-of-its-rows"),
        pytest.param((13, 20), rows(8, 9), (13, 4), id="the-rest-of-them"),
        pytest.param((8, 5), rows(8, 9, whole=True), (8, 9), id="all-rows-at-once"),
        pytest.param((17, 20), rows(8, 9), (17, 20), id="behind-the-image"),
    ],
)
def test_a_chunk_is_tokens_or_one_image(chunk, image, expected):
    request = Request(request_id="r", prompt=(1,) * 60, max_tokens=1, rows=(image,))
    sequence = Sequence(request, arrived_s=0.0)
    (found,) = cut_chunks([Span(0, *chunk, 1)], [sequence], 100)
    assert found[1:3] == expected
    assert found.sample == (chunk[0] >= image.end)


def test_what_an_image_leaves_no_room_for_waits():
    def prompt(name, *images):
        return Sequence(Request(request_id=name, prompt=(1,) * 60, max_tokens=1, rows=images), arrived_s=0.0)

    by_slot = [prompt("a", rows(0, 30, whole=True)), prompt("b"), prompt("c")]
    chunks = [Span(0, 0, 10, 0), Span(1, 0, 20, 0), Span(2, 0, 5, 0)]
    assert cut_chunks(chunks, by_slot, 40) == [Span(0, 0, 30, 0), Span(2, 0, 5, 0)]


def test_a_prompt_begins_nowhere_inside_an_image():
    tokens = array("i", [*range(10), *ids_of(DIGEST, 0, 20), *range(50, 60)])
    half = SlotContents(0, tokens[:20], 20, 99.0, idle=True)
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=64, n_cells=64, token_budget=64, prefill_chunk=64, min_prefix=4
    )
    assert choose_placement(tokens, [half], limits, level=0.0, n_free_cells=64).n_keep == 20
    assert (
        choose_placement(tokens, [half], limits, level=0.0, n_free_cells=64, rows=[rows(10, 20)]).n_keep == 10
    )


def test_ids_are_below_every_vocabulary_and_name_file_and_part():
    ids = [ids_of(digest, part, 500) for digest in (DIGEST, b"1" * 32) for part in (0, 1)]
    assert max(max(some) for some in ids) < 0
    assert len({token for some in ids for token in some}) > 1990
    assert ids_of(DIGEST, 0, 500) == ids[0]
    array("i", ids[0])


def test_no_draft_holds_an_image():
    said = array("i", [1, 2, 3, *ids_of(DIGEST, 0, 4), 7, 1, 2])
    assert look_up(said, 4) == Draft(array("i", [3]), 2)


def test_only_rows_may_stand_outside_the_vocabulary():
    request = Request(request_id="r", prompt=(1, -5, -6, 2), max_tokens=1, rows=(rows(1, 2),))
    request.check_tokens(10)
    for wrong in (
        {"rows": ()},
        {"rows": (rows(1, 1),)},
        {"prompt": (1, 2, -5, -6)},
        {"prompt": (11, -5, -6, 2)},
    ):
        with pytest.raises(InvalidParameterError):
            replace(request, **wrong).check_tokens(10)


def test_positions_behind_images_that_take_fewer():
    positions = Positions(2)
    assert positions.plain
    positions.note(0, 30, 16)
    positions.note(0, 60, 4)
    assert [positions.of(0, n) for n in (10, 30, 40, 60)] == [10, 14, 24, 40]
    slots, numbers = np.array([0, 1], np.int32), np.array([70, 5], np.int32)
    assert positions.shifted(slots, numbers).tolist() == [50, 5]
    positions.copy(0, 1, 35)
    assert positions.shifted(slots, numbers).tolist() == [50, -11]
    positions.cut(0, 30)
    assert positions.of(0, 40) == 24
    positions.cut(0, 29)
    positions.cut(1, 0)
    assert positions.plain


def test_a_batch_has_no_image_of_the_last_one():
    batch = TickBatch(16)
    known = [array("i", [1, -7, -8, 2]), array("i", [3, 4])]
    batch.fill((Span(0, 1, 2, 0), Span(1, 0, 2, 1)), known)
    batch.embed(0, embedded(2))
    assert batch.token[:4].tolist() == [0, 0, 3, 4]
    batch.fill((Span(1, 0, 2, 1),), known[1:])
    assert not batch.embedded


def embedded(n):
    return ImageRows(np.zeros((n, 4), np.float32), None, n, causal=True)


class FakeProjector:
    """Three rows between two tokens for each image; `gate` holds an image up while it is encoded."""

    whole = False

    def __init__(self):
        self.gate, self.begun, self.n_encoded, self.breaks = threading.Event(), threading.Event(), 0, False
        self.gate.set()

    def read(self, image):
        return None if image == b"broken" else [ImagePart((7,)), ImagePart((), 3), ImagePart((8,))]

    def encode(self, image):
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        self.n_encoded += 1
        if self.breaks:
            raise RuntimeError("the projector is on fire")
        return [embedded(3)]


class Loop:
    """A loop whose model sees images."""

    def __init__(self):
        self.projector, self.ended, self.said = FakeProjector(), queue.SimpleQueue(), []
        self.loop = EngineLoop(self.build, FakeClock(), self.sink)
        self.loop.start()
        self.loop.wait_open()

    def build(self, sink):
        backend = ScriptedBackend(n_slots=2, n_ctx_slot=64, n_batch=32)
        backend.projector = self.projector
        limits = EngineLimits(
            n_slots=2, n_ctx_slot=64, n_cells=128, token_budget=32, prefill_chunk=30, min_prefix=4,
            cell_bytes=CELL_BYTES,
        )  # fmt: skip
        self.engine = Engine(backend, limits, FakeClock(), sink, entropy=lambda: 1)
        return self.engine, None

    def sink(self, batch):
        for _, event in batch:
            if isinstance(event, End):
                self.ended.put(event)

    def submit(self, request):
        if request.images:
            request = self.loop.expand(request).result(WAIT_S)
        self.loop.submit(request)
        return request

    def end(self):
        return self.ended.get(timeout=WAIT_S)


@pytest.fixture
def setup():
    setup = Loop()
    yield setup
    setup.projector.gate.set()
    setup.loop.stop()


def request_of(name, *files, n_text=2, max_tokens=3):
    images = tuple(Image(data, f"image of {name}") for data in files)
    prompt = [token for image in images for token in (1, place_of(image))] + [2] * n_text
    return Request(request_id=name, prompt=tuple(prompt), max_tokens=max_tokens, images=images)


def test_an_image_comes_to_rows_between_its_marks(setup):
    request = setup.submit(request_of("a", b"one", b"two"))
    assert [token if token >= 0 else "row" for token in request.prompt] == [
        *(1, 7, "row", "row", "row", 8),
        *(1, 7, "row", "row", "row", 8),
        *(2, 2),
    ]
    assert [(one.start, one.length, one.part) for one in request.rows] == [(2, 3, 1), (8, 3, 1)]
    assert setup.end().stats.n_prompt == 14


def test_others_go_on_while_an_image_is_encoded(setup):
    setup.projector.gate.clear()
    setup.submit(request_of("slow", b"one"))
    assert setup.projector.begun.wait(WAIT_S)
    setup.submit(request_of("text"))
    assert setup.end().request_id == "text"
    setup.projector.gate.set()
    assert (end := setup.end()).request_id == "slow"
    assert (end.error, end.stats.n_output) == (None, 3)


def test_whoever_leaves_meanwhile_is_not_encoded(setup):
    setup.projector.gate.clear()
    setup.submit(request_of("first", b"one"))
    setup.submit(request_of("leaves", b"two"))
    setup.loop.cancel("leaves")
    assert (end := setup.end()).request_id == "leaves"
    assert isinstance(end.error, RequestCancelledError)
    setup.projector.gate.set()
    assert setup.end().request_id == "first"
    setup.submit(request_of("third", b"one"))
    setup.end()
    assert setup.projector.n_encoded == 1


def test_one_that_cannot_be_encoded_ends_alone(setup):
    setup.projector.breaks = True
    setup.submit(request_of("broken", b"one"))
    assert isinstance(setup.end().error, InternalError)
    setup.projector.breaks = False
    setup.submit(request_of("whole", b"one"))
    assert setup.end().error is None


def test_the_rows_of_a_request_go_with_it(setup):
    setup.submit(request_of("a", b"one"))
    setup.end()
    kept = setup.loop.ask(
        lambda engine: (
            len(engine._batches.rows),
            [e.request.images for e, _ in engine.scheduler.story.entries if isinstance(e, Submitted)],
        )
    )
    assert kept.result(WAIT_S) == (0, [()])


def test_a_slot_with_an_image_is_not_saved(setup):
    """Its file could never be restored: an image is no token, and another projector makes other rows."""
    setup.submit(request_of("a", b"one"))
    setup.end()
    saved = setup.loop.ask(lambda engine: engine.idle_slots.take_out(0))
    with pytest.raises(InvalidParameterError, match="slot 0 holds an image"):
        saved.result(WAIT_S)


@pytest.mark.parametrize(("keeps_images", "n_cached"), [(True, 0), (False, 64)])
def test_a_slot_whose_image_cannot_be_kept_displaces_nothing_in_host_memory(keeps_images, n_cached):
    backend = ScriptedBackend(n_slots=1, n_ctx_slot=128, n_batch=64)
    one = OnEngine(backend, min_prefix=4, n_host_cells=64, keeps_images=keeps_images)

    def ask(name, prompt, n_rows=0):
        rows = (Rows(0, n_rows, DIGEST, 1, whole=False),) if n_rows else ()
        request = Request(request_id=name, prompt=tuple(prompt), max_tokens=1, rows=rows)
        sequence = one.engine.submit(request, ready=not rows)
        if rows:
            one.engine.ready(sequence, None, {(DIGEST, 1): embedded(n_rows)})
        one.run()

    ask("text", range(10, 80))
    ask("image", [*ids_of(DIGEST, 1, 66), 2, 2], n_rows=66)
    ask("other", range(80, 150))
    ask("again", range(10, 80))
    assert one.cached("again") == n_cached


def test_what_is_no_image_or_too_long_is_refused_before_it_is_let_in(setup):
    with pytest.raises(InvalidImageError) as refusal:
        setup.submit(request_of("a", b"broken"))
    assert refusal.value.param == "image of a"
    with pytest.raises(PromptTooLongError):
        setup.submit(request_of("b", *[b"one"] * 12))
    with pytest.raises(InvalidParameterError):  # an id without an image
        setup.loop.submit(Request(request_id="c", prompt=(1, -5, 2), max_tokens=1))


def test_rows_are_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("cobali_ray.engine.images.KEPT_BYTES", 2 * 3 * 4 * 4)
    projector = FakeProjector()
    limits = EngineLimits(n_slots=2, n_ctx_slot=64, n_cells=128, token_budget=32, prefill_chunk=30)
    reader = ImageReader(projector, limits)
    for data in (b"one", b"two", b"one", b"three", b"one", b"two"):
        request = reader.expand(request_of("a", data))
        reader.encode(request, request.images)
    assert projector.n_encoded == 4  # two was given up for three


def test_whoever_waits_for_others_images_is_refused_when_the_model_goes(setup):
    read, gate = setup.projector.read, threading.Event()
    setup.projector.read = lambda image: gate.wait(WAIT_S) and read(image)
    *_, last = [setup.loop.expand(request_of(name, name.encode())) for name in "abc"]  # two are read at once
    setup.loop.stop(timeout_s=0.0)
    gate.set()
    assert isinstance(last.exception(WAIT_S), DrainingError)


def test_a_loop_that_is_not_open_takes_no_images():
    with pytest.raises(LoadingError):
        EngineLoop(lambda sink: None, FakeClock(), lambda batch: None).expand(request_of("a", b"one"))


@pytest.fixture
def server():
    server = EngineServer(EngineSettings(model="builtin:scripted", n_slots=1, max_queue=1))
    projector = server._host.model.loop._engine.images._projector = FakeProjector()
    server._pusher.send = lambda batch: set()  # nobody listens, and nothing is lost
    yield server, projector
    server.__del__()


async def test_no_more_images_are_looked_at_than_the_queue_holds(server):
    server, projector = server
    read, gate = projector.read, threading.Event()
    projector.read = lambda image: gate.wait(WAIT_S) and read(image)
    waiting = [asyncio.ensure_future(server.run(request_of(name, name.encode()))) for name in ("a", "b")]
    await asyncio.sleep(0)
    assert isinstance(await server.run(request_of("c", b"three")), QueueFullError)
    assert await server.run(request_of("text")) is None
    gate.set()
    assert await asyncio.gather(*waiting) == [None, None]


def test_nobody_is_quicker_because_others_sent_the_same_image():
    limits = EngineLimits(n_slots=2, n_ctx_slot=64, n_cells=128, token_budget=32, prefill_chunk=30)
    reader = ImageReader(projector := FakeProjector(), limits)
    for salt, n_encoded in (("alice", 1), ("alice", 1), ("bob", 2), (None, 3), (None, 4), ("bob", 4)):
        request = replace(reader.expand(request_of("a", b"one")), cache_salt=salt)
        reader.encode(request, request.images)
        assert projector.n_encoded == n_encoded
