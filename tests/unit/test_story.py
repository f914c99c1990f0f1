"""What happened in a real run, told to another scheduler, which answers the same."""

import pytest

from cobali_ray.backend.scripted import ScriptedBackend, ScriptedEmbedder
from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.goodput import Speculation
from cobali_ray.core.instructions import Compute, Copy, Embed, Emit, Restore
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.request import GREEDY, Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import InternalError
from cobali_ray.testing import FakeClock, Recorder

LIMITS = EngineLimits(
    n_slots=3, n_ctx_slot=128, n_cells=200, token_budget=35, prefill_chunk=32, min_prefix=8,
    n_host_cells=1000, host_block=8, cell_bytes=64, copies=True, dense=True,
)  # fmt: skip


def parts():
    """Return what a scheduler learns with, as it is at first."""
    return {"pacer": Pacer("auto"), "speculation": Speculation()}


def open_engine(*, overlaps=False):
    clock = FakeClock()
    backend = ScriptedBackend(
        n_slots=3, n_ctx_slot=128, n_cells=200, n_batch=64, embedder=ScriptedEmbedder(32),
        tick_s=0.01, sleep=clock.advance, now=clock.now, overlaps=overlaps,
    )  # fmt: skip
    return Engine(backend, LIMITS, clock, Recorder(), **parts())


def ask(name, n_prompt=20, **changes):
    prompt = tuple(65 + (i + len(name)) % 26 for i in range(n_prompt))
    fields = {"max_tokens": 40, "sampling": GREEDY} | changes
    return Request(request_id=name, prompt=prompt, **fields)


def run(engine):
    """Have it do a little of everything."""
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
            engine.submit(ask(name, 60, said=(70, 71) if name == "a2" else ()))
        while engine.has_work:
            engine.tick()


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_same_events_get_the_same_answers(overlaps):
    """Nothing but events moves a scheduler: not the clock, nor what became of its answers."""
    engine = open_engine(overlaps=overlaps)
    first, told = engine.scheduler, []

    def handle(event):
        told.append((event, Scheduler.handle(first, event)))
        return told[-1][1]

    first.handle = handle
    run(engine)
    assert {Compute, Embed, Emit, Copy, Restore} <= {type(one) for _, out in told for one in out}
    again = Scheduler(
        LIMITS,
        end_tokens=engine.backend.end_tokens,
        embedding=engine.backend.embedder.kind,
        **parts(),
    )
    for event, answer in told:
        assert repr(again.handle(event)) == repr(answer)
