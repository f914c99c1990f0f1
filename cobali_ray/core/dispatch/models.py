"""Models: which engine of one is best for a request, and when one more is needed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cobali_ray.core.dispatch.engines import EngineRecord
from cobali_ray.core.dispatch.messages import AnyRequest
from cobali_ray.core.dispatch.route import Route, Router
from cobali_ray.core.dispatch.scale import Demand, handicaps
from cobali_ray.core.queue.fair import OUTPUT_COST, ServedElsewhere
from cobali_ray.core.request.events import Delta, EngineEvent
from cobali_ray.core.request.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The operator's settings for a model."""

    name: str
    engine_ids: tuple[str, ...]
    n_stay: int
    """How many of its first engines are never unloaded for others, and are preferred by the router."""
    scale_up_wait_s: float = 1.0
    """One more engine is loaded when requests would wait this long."""
    max_waiting: int = 128
    """Most requests that may wait for a load."""
    stall_timeout_s: float = 60.0
    """An engine that is silent for this long is taken for dead."""


class ModelRecord:
    """A model and its engines, as the dispatcher knows them."""

    def __init__(self, plan: ModelPlan) -> None:
        self.plan, self.name = plan, plan.name
        self.engines = {id_: EngineRecord(id_, plan.stall_timeout_s) for id_ in plan.engine_ids}
        self.n_open = self.n_waiting = 0
        """Requests that have not ended; callers that wait for a load."""
        self.growing = False
        self.router = Router(handicaps(plan.engine_ids, plan.n_stay, plan.scale_up_wait_s))
        self.demand, self.elsewhere = Demand(plan.scale_up_wait_s), ServedElsewhere()

    @property
    def loose(self) -> Sequence[str]:
        """The engines that may be unloaded while they are idle; with requests open, one is kept for them."""
        return self.plan.engine_ids[max(self.plan.n_stay, min(self.n_open, 1)) :]

    def choose(self, request: AnyRequest, there: Mapping[str, EngineRecord], now_s: float) -> Route:
        """Return the engine with the shortest predicted time to the first token."""
        first = Route(next(iter(there)), 0.0, 0, 0.0, ())
        if len(self.engines) == 1:
            return first
        salt = request.cache_salt
        if isinstance(request, Request):  # with logprobs of its prompt it begins with nothing
            salt = request.salt if request.n_prompt_logprobs is None else None
        others = self.engines.keys() - there.keys()
        common = request.common_prompt if isinstance(request, Request) else request.prompt
        route = self.router.choose(request.prompt, salt, now_s, without=others, common=common)
        return route or first  # without one, no engine has published its load yet

    def needs_more(self, route: Route, now_s: float) -> bool:
        """Record a request's predicted wait; return whether one more engine is to be loaded."""
        if self.growing or len(self.engines) == 1 or all(engine.present for engine in self.engines.values()):
            return False
        return self.demand.grows(route.ttft_s - route.own_s, now_s)


def cost_of(event: EngineEvent) -> float:
    """Return what an event costs in the accounts of fairness."""
    if not isinstance(event, Delta):
        return 0.0
    prompt = event.stats.n_prompt - event.stats.n_cached if event.stats is not None and event.tokens else 0
    return OUTPUT_COST * len(event.tokens) + prompt
