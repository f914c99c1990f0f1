"""People who chat at the same time, on the real engine by a simulated clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, NamedTuple, cast

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend, Words
from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.request.events import Delta, End, EngineEvent, RequestStats
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.context import sizes_of
from cobali_ray.engine.opening import engine_on, model_path, open_backend
from cobali_ray.errors import InternalError, PromptTooLongError
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import FakeClock
from cobali_workloads.inside.oracle import Visit, best_hits, slot_hits
from cobali_workloads.load.prompts import PromptMaker, measure_costs

PASS_S, TOKEN_S = 0.015, 0.00025
"""What a simulated forward pass takes, and each of its tokens."""
ARRIVE_S = 30.0
"""Everybody's first message comes within this time."""
THINK_S = 8.0
"""Mean time from an answer to the next message, exponential."""
N_TURNS = (4, 6)
N_MESSAGE = (16, 120)
N_ANSWER = (32, 256)
_SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, n_logprobs=0)
"""Log-probabilities, because they carry the ids of the tokens that were drawn."""


class ChatTurn(NamedTuple):
    """One message of a person; lengths are tokens."""

    wait_s: float
    """From the last answer, or from the beginning."""
    text: str
    n_answer: int


@dataclass(slots=True)
class Person:
    """A conversation so far, and what is still to be said."""

    turns: list[ChatTurn]
    messages: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One request as it went."""

    turn: int
    visit: Visit
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Chats:
    """All requests of one scene, in order of arrival."""

    turns: Sequence[TurnResult]
    n_cells: int
    """Of the cache and of host memory."""

    @property
    def n_prompt(self) -> int:
        """Prompt tokens in all."""
        return sum(turn.visit.n_prompt for turn in self.turns)

    @property
    def cached(self) -> float:
        """The share of prompt tokens that were not computed."""
        return sum(turn.stats.n_cached for turn in self.turns) / self.n_prompt

    def best_in_slots(self, n_slots: int) -> float:
        """Return the share that slots would have held if they knew the future; see `oracle`."""
        return sum(slot_hits([turn.visit for turn in self.turns], n_slots)) / self.n_prompt

    def best(self, n_cells: int | None) -> float:
        """Return the share that a perfect cache would have held; see `oracle`."""
        return sum(best_hits([turn.visit for turn in self.turns], n_cells)) / self.n_prompt


def people(n: int, n_system: int, words: Words, seed: int) -> list[Person]:
    """Make up `n` conversations that begin with the same system prompt of `n_system` tokens, if any."""
    maker = PromptMaker(measure_costs(lambda text: len(words.tokenize(text, add_special=False))), seed)
    system = [{"role": "system", "content": maker.text("system", n_system)}] if n_system else []
    made = []
    for i in range(n):
        rng = Random(f"{seed} person {i}")
        turns = [
            ChatTurn(
                wait_s=rng.expovariate(1 / THINK_S) if turn else rng.uniform(0, ARRIVE_S),
                text=maker.text(f"person {i} turn {turn}", rng.randint(*N_MESSAGE)),
                n_answer=rng.randint(*N_ANSWER),
            )
            for turn in range(rng.randint(*N_TURNS))
        ]
        made.append(Person(turns, list(system)))
    return made


class HybridScript(ScriptedBackend):
    """A scripted model of the shape of Qwen 3.5 0.8B; in the plain scripted one all layers have attention.

    Here one in four has; the others have a state that takes as much as 400 tokens of the plain model.
    """

    def measure_cell(self) -> int:
        """Return a quarter of what a plain model's cell takes."""
        return CELL_BYTES // 4

    def measure_state(self) -> int:
        """Return what the state of the other layers takes."""
        return 400 * CELL_BYTES


def plain(settings: EngineSettings) -> Backend:
    """Open the model that the settings name."""
    return open_backend(settings, model_path(settings))


def hybrid(settings: EngineSettings) -> Backend:
    """Open a scripted model that goes back to states."""
    n_slots, n_ctx = sizes_of(settings, None, None)
    return HybridScript(
        n_slots=n_slots,
        n_ctx_slot=n_ctx,
        n_cells=settings.llama.kv_cells,
        n_batch=settings.limits.budget(n_slots, n_ctx),
        keeps_states=True,
    )


def run_chats(
    settings: EngineSettings,
    n_people: int,
    n_system: int,
    seed: int,
    open_model: Callable[[EngineSettings], Backend] = plain,
) -> Chats:
    """Let everybody chat to the end. Each waits for an answer, thinks, and says the next thing."""
    clock = FakeClock()
    backend = open_model(settings)
    try:
        scene = _ChatRun(backend.words, people(n_people, n_system, backend.words, seed), clock)
        timed = cast("Backend", _Timed(backend, clock))
        engine = engine_on(timed, settings, scene.take, clock=clock)
        while (due_s := scene.due_s) is not None or engine.has_work:
            if due_s is not None and not engine.has_work:
                clock.advance(max(due_s - clock.now(), 0.0))
            for request in scene.due(clock.now()):
                if request.n_most > engine.limits.n_most:
                    raise PromptTooLongError(request.n_prompt, request.max_tokens, engine.limits.n_most)
                engine.submit(request)
            engine.tick()
    finally:
        backend.close()
    n_cells = engine.limits.n_cells + engine.limits.n_host_cells
    return Chats([scene.ended[i] for i in scene.order], n_cells)


@dataclass
class _ChatRun:
    words: Words
    people: list[Person]
    clock: FakeClock
    order: list[str] = field(default_factory=list)
    """Request ids as they were submitted: `person.turn`."""
    ended: dict[str, TurnResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting = [(person.turns[0].wait_s, i, 0) for i, person in enumerate(self.people)]
        heapify(self._waiting)
        self._open: dict[str, tuple[Request, list[int], list[str]]] = {}

    @property
    def due_s(self) -> float | None:
        """When the next message is sent; None while nobody has one."""
        return self._waiting[0][0] if self._waiting else None

    def due(self, now: float) -> list[Request]:
        """Take the requests whose time has come."""
        requests = []
        while self._waiting and self._waiting[0][0] <= now:
            _, person, turn = heappop(self._waiting)
            requests.append(self._ask(person, turn))
        return requests

    def _ask(self, person: int, turn: int) -> Request:
        speaker = self.people[person]
        speaker.messages.append({"role": "user", "content": speaker.turns[turn].text})
        prompt = self._tokens(speaker.messages, answer=True)
        turns = [self._tokens(speaker.messages[: n + 1], answer=False) for n in range(len(speaker.messages))]
        request = Request(
            request_id=f"{person}.{turn}",
            prompt=tuple(prompt),
            turns=tuple(map(len, turns)),
            max_tokens=speaker.turns[turn].n_answer,
            sampling=_SAMPLING,
        )
        self._open[request.request_id] = (request, [], [])
        self.order.append(request.request_id)
        return request

    def _tokens(self, messages: Sequence[dict[str, str]], *, answer: bool) -> list[int]:
        text = self.words.chat.render(messages, add_generation_prompt=answer)
        return self.words.tokenize(text, add_special=False)

    def take(self, batch: list[tuple[str, EngineEvent]]) -> None:
        """Take the engine's events; after the end of an answer its person thinks."""
        for _, event in batch:
            request, tokens, texts = self._open[event.request_id]
            if isinstance(event, Delta):
                tokens += [logprob.token_id for logprob in event.logprobs]
                texts.append(event.text)
                continue
            if not isinstance(event, End):
                raise InternalError(f"request {event.request_id} was embedded")
            if event.error is not None:
                raise InternalError(f"request {event.request_id} failed: {event.error}")
            person, turn = map(int, event.request_id.split("."))
            n_computed = request.n_prompt + event.stats.n_output - 1  # the last token drawn never is
            computed = array("i", [*request.prompt, *tokens][:n_computed])
            self.ended[event.request_id] = TurnResult(turn, Visit(request.n_prompt, computed), event.stats)
            speaker = self.people[person]
            speaker.messages.append({"role": "assistant", "content": "".join(texts)})
            if turn + 1 < len(speaker.turns):
                wait_s = speaker.turns[turn + 1].wait_s
                heappush(self._waiting, (self.clock.now() + wait_s, person, turn + 1))


class _Timed:
    """A backend whose passes take simulated time."""

    def __init__(self, backend: Backend, clock: FakeClock) -> None:
        self._backend, self._clock = backend, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, batch: TickBatch) -> None:
        self._backend.forward(batch)
        self._clock.advance(PASS_S + TOKEN_S * batch.n_tokens)
