"""Requests run in this process, without a server."""

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.engine.engine import Engine
from cobali_ray.testing import FakeClock
from cobali_workloads.offline import run_offline


def test_answers_are_cut_and_prompts_that_leave_no_room_are_named():
    backend = ScriptedBackend(n_slots=4, n_ctx_slot=64, n_batch=16)
    limits = EngineLimits(n_slots=4, n_ctx_slot=64, n_cells=256, token_budget=16, prefill_chunk=8)
    asked = [Request(request_id=f"{n}", prompt=(1,) * n, max_tokens=1000) for n in (60, 64)]
    report = run_offline(lambda sink: Engine(backend, limits, FakeClock(step_s=0.001), sink), asked)
    assert (list(report.requests), report.n_output) == (["60"], 4)
    assert list(report.failed) == ["64"]
    assert "64 in the prompt" in report.failed["64"]
