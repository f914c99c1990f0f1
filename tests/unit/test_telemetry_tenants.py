"""Counters by tenant: what is counted for whom, and that names are bounded."""

from telemetry_records import LIFE, make_collector, render

from cobali_ray.core.request.events import End
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.telemetry.names import ANYONE, MAX_TENANTS, OTHERS


def enter(collector, request_id, **kwargs):
    request = Request(request_id=request_id, prompt=(1, 2), max_tokens=4, **kwargs)
    collector.on_submit(Sequence(request, arrived_s=0.0))


def test_what_ended_requests_took_is_counted_for_their_tenant():
    collector = make_collector()
    for request_id, tenant, n_preempted in (("a", "alice", 0), ("b", "alice", 2), ("c", "", 0)):
        enter(collector, request_id, tenant=tenant, priority=n_preempted)
        collector.on_end(End(request_id, "stop", None, LIFE._replace(n_preempted=n_preempted)))
    text = render(collector.snapshot())
    for line in (
        'cobali_tenant_requests_total{engine="0",tenant="alice"} 2.0',
        f'cobali_tenant_requests_total{{engine="0",tenant="{ANYONE}"}} 1.0',
        'cobali_tenant_prompt_tokens_total{engine="0",tenant="alice"} 60.0',
        'cobali_tenant_output_tokens_total{engine="0",tenant="alice"} 10.0',
        'cobali_tenant_queue_seconds_total{engine="0",tenant="alice"} 0.008',
        'cobali_class_preemptions_total{engine="0",priority="2"} 2.0',
    ):
        assert line in text


def test_names_are_bounded():
    collector = make_collector()
    for i in range(MAX_TENANTS + 5):
        enter(collector, f"r{i}", tenant=f"t{i}")
        collector.on_end(End(f"r{i}", "stop", None, LIFE))
    counts = collector.snapshot().counters["tenant_requests"]
    assert len(counts) == MAX_TENANTS + 1
    assert counts[OTHERS] == 5
