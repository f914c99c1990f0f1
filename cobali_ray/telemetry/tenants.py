"""What ended requests of every tenant took, and how often every class was preempted."""

from __future__ import annotations

from collections.abc import Mapping

from cobali_ray.core.request.events import RequestStats

MAX_TENANTS = 50
"""Names that have series of their own; tenants that come later are counted together."""
ANYONE, OTHERS = "anyone", "others"
"""Names in series: for requests without a key, and for tenants beyond MAX_TENANTS."""
MEASURES = {
    "tenant_requests": "Requests that have ended, by tenant.",
    "tenant_prompt_tokens": "Prompt tokens computed, cached ones left out, by tenant.",
    "tenant_output_tokens": "Output tokens, by tenant.",
    "tenant_queue_seconds": "Seconds that requests waited for their first slot, by tenant.",
}


class Tenants:
    """Counters by tenant and by class, of a bounded number of names."""

    def __init__(self) -> None:
        self._by_measure: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
        self._preemptions: dict[str, int] = {"0": 0}

    def add(self, tenant: str, priority: int, stats: RequestStats, *, computed: bool | None = None) -> None:
        """Count a request that ended. `computed`: whether its prompt was; None: if it has a first token."""
        if computed is None:
            computed = stats.ttft_s is not None
        name, n_by_tenant = tenant or ANYONE, self._by_measure["tenant_requests"]
        if name not in n_by_tenant and len(n_by_tenant) >= MAX_TENANTS:
            name = OTHERS
        values = (
            1.0,
            stats.n_prompt - stats.n_cached if computed else 0.0,
            stats.n_output,
            stats.e2e_s if stats.queue_s is None else stats.queue_s,
        )
        for counts, value in zip(self._by_measure.values(), values, strict=True):
            counts[name] = counts.get(name, 0.0) + value
        self._preemptions[str(priority)] = self._preemptions.get(str(priority), 0) + stats.n_preempted

    def counts(self) -> dict[str, Mapping[str, float]]:
        """Return a copy: by measure, by tenant."""
        return {name: dict(counts) for name, counts in self._by_measure.items()}

    def preemptions(self) -> dict[str, int]:
        """Return a copy: by class."""
        return dict(self._preemptions)
