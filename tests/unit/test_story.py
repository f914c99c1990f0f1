"""A story of a real run, written to a file and told to another scheduler, which answers the same."""

import pytest

from cobali_ray.backend.scripted import ScriptedBackend, ScriptedEmbedder
from cobali_ray.core.messages import Compute, Copy, Embed, Emit, Restore
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.story import Story, load
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import InternalError, InvariantError
from cobali_ray.testing import EventRecorder, FakeClock

LIMITS = EngineLimits(
    n_slots=3, n_ctx_slot=128, n_cells=200, token_budget=35, prefill_chunk=32, min_prefix=8,
    n_host_cells=1000, host_block=8, cell_bytes=64, copies=True, dense=True,
)  # fmt: skip


def open_engine(story, *, overlaps=False):
    clock = FakeClock()
    backend = ScriptedBackend(
        n_slots=3, n_ctx_slot=128, n_cells=200, n_batch=64, embedder=ScriptedEmbedder(32),
        tick_s=0.01, sleep=clock.advance, now=clock.now, overlaps=overlaps,
    )  # fmt: skip
    return Engine(
        backend, LIMITS, clock, EventRecorder(), pacer=Pacer("auto"), speculation=Speculation(), story=story
    )


def ask(name, n_prompt=20, **changes):
    prompt = tuple(65 + (i + len(name)) % 26 for i in range(n_prompt))
    fields = {"max_tokens": 40, "sampling": GREEDY} | changes
    return Request(request_id=name, prompt=prompt, **fields)


def run(engine):
    engine.submit(ask("a", 60, stop=("e", "zz")))
    engine.submit(ask("b", 60, tenant="other", priority=1))
    engine.embed(EmbeddingRequest.of([[1] * 9, [2] * 30], request_id="texts", tenant="other"))
    for _ in range(6):
        engine.tick()
    engine.submit(ask("c", 100, timeout_s=0.05))
    engine.submit(ask("bb", 62))
    engine.submit(ask("late", 40), ready=False)
    for _ in range(30):
        engine.tick()
    engine.cancel("b")
    engine.fail_all(InternalError("broken"))
    for names in (["a2"], ["ccc", "dddd", "eeeee"], ["ffffff"], ["a3"]):
        for name in names:
            engine.submit(ask(name, 60, sent_tokens=(70, 71) if name == "a2" else ()))
        while engine.has_work:
            engine.tick()


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_written_story_is_told_again_and_gets_the_same_answers(tmp_path, overlaps):
    engine = open_engine(Story(None), overlaps=overlaps)
    run(engine)
    file = tmp_path / "story"
    file.write_bytes(engine.scheduler.story.dump())
    story = load(file.read_bytes())
    kinds = {type(one) for _, out in story.entries for one in out}
    assert {Compute, Embed, Emit, Copy, Restore} <= kinds, "it is worth telling"
    again = Scheduler(**story.opening)
    for event, answer in story.entries:
        assert repr(again.handle(event)) == repr(answer)


def test_a_story_says_which_texts_a_pass_embeds():
    engine = open_engine(Story(None))
    engine.embed(EmbeddingRequest.of([[1] * 9, [2] * 20], request_id="texts"))
    engine.tick()
    assert "Embed(texts:1 texts:0)" in engine.scheduler.story.text()


def test_a_story_without_its_beginning_is_not_written():
    engine = open_engine(Story(9))
    run(engine)
    with pytest.raises(InvariantError, match="only 9 of"):
        engine.scheduler.story.dump()
