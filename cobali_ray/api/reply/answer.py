"""What an API writes of a call; OpenAI's whole answers; usage and timings of both kinds of answer. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Pace, Timings
from cobali_ray.api.reply.keepalive import COMMENT
from cobali_ray.api.reply.logprobs import WholeLogprobs, prompt_lists
from cobali_ray.api.reply.turn import Update
from cobali_ray.core.request.events import End, RequestStats, TokenLogprob

SSE: Final = b"text/event-stream; charset=utf-8"


@dataclass(slots=True)
class Choice:
    logprobs: WholeLogprobs
    prompt: WholeLogprobs | None = None
    """Where `prompt_logprobs` asks for them."""
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Where `return_token_ids` asks for them."""
    end: End = field(init=False)
    """Once it has ended."""

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Writer(ABC):
    """Writes the answer to a call as an API has it: as a stream, or whole. Choices have an index."""

    media_type: ClassVar = SSE
    ping: ClassVar = COMMENT
    """What a stream sends where it would be silent; b"": nothing may stand between its parts."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def opening(self, index: int) -> bytes:  # noqa: ARG002 most have nothing to say there
        """Return what a stream has before the first text of a choice."""
        return b""

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:  # noqa: ARG002 most have no words for it
        """Return the event for a choice without text yet; `fields` say how far it is."""
        return b""

    @abstractmethod
    def say(self, update: Update) -> bytes:
        """Return what a batch adds to one choice of a stream; may be empty."""

    @abstractmethod
    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:
        """Return what goes behind a choice; behind the last, with the `stats` of all, also the end."""

    @abstractmethod
    def failure(self, fault: Fault) -> bytes:
        """Return the error of a stream that failed halfway, and its end."""

    @abstractmethod
    def add(self, update: Update) -> None:
        """Take what a batch adds to one choice of a whole answer."""

    @abstractmethod
    def body(self, times: Timings) -> Any:
        """Return the whole answer; every choice has ended."""

    async def settle(self, wire: bytes) -> bytes:
        """Do what has to be done before an answer ends, such as storing it; return its last bytes."""
        return wire

    def finish_reason(self, index: int, end: End) -> str | None:  # noqa: ARG002 most have one word for it
        """Return why a choice ended, in the words of the API."""
        return end.finish_reason


class Choices(Writer):
    """A whole answer by its choices, as OpenAI has it."""

    whole_kind: str

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        n_top = call.n_prompt_logprobs
        self.choices = [
            Choice(
                self._kept_logprobs(index),
                None if n_top is None else WholeLogprobs(partial(prompt_lists, n_top)),
            )
            for index in range(len(call.requests))
        ]

    def add(self, update: Update) -> None:
        self._keep(update, update.logprobs)

    def body(self, times: Timings) -> Any:
        call = self._call
        stats = [choice.end.stats for choice in self.choices]
        return {
            "id": call.call_id,
            "object": self.whole_kind,
            "created": call.created,
            "model": call.model,
            "system_fingerprint": call.fingerprint,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self.choices)],
            "usage": usage(call, stats, self.n_reasoning),
            "timings": timings(stats, times),
            **self._more(),
        }

    def _more(self) -> dict[str, Any]:
        return {}

    def _keep(self, update: Update, logprobs: Sequence[TokenLogprob]) -> None:
        choice = self.choices[update.choice]
        choice.texts.append(update.text)
        if self._call.return_token_ids:
            choice.tokens += update.tokens
        if choice.prompt is not None:
            choice.prompt.add(update.prompt)
        choice.logprobs.add(logprobs)
        if update.end is not None:
            choice.end = update.end

    @property
    def n_reasoning(self) -> int | None:
        """Tokens of reasoning so far; None where answers have none."""
        return None

    @abstractmethod
    def _kept_logprobs(self, index: int) -> WholeLogprobs: ...

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> dict[str, Any]: ...


def usage(call: Call, stats: Sequence[RequestStats], n_reasoning: int | None) -> dict[str, Any]:
    """Return the token counts of a call. `stats` has one element per choice.

    `n_reasoning` is None where answers cannot have any.
    A prompt counts once however many answers it gets, and so do its cached tokens: those of its first answer.
    """
    n_prompt, n_output = prompt_tokens(call, stats), sum(stat.n_output for stat in stats)
    details = {} if n_reasoning is None else {"completion_tokens_details": {"reasoning_tokens": n_reasoning}}
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "prompt_tokens_details": {"cached_tokens": sum(stat.n_cached for stat in stats[:: call.n])},
        **details,
    }


def prompt_tokens(call: Call, stats: Sequence[RequestStats]) -> int:
    """Return the prompt tokens of a call as the engine counts them, images included."""
    return sum(stat.n_prompt for stat in stats[:: call.n])


def timings(stats: Sequence[RequestStats], times: Timings) -> dict[str, Any]:
    """Return the times of an answer in seconds; of several choices those of the slowest, then of each.

    What `intake_s`, `queue_s` and `prefill_s` leave of `ttft_s`, and these and `decode_s` of `e2e_s`, is the
    way from the engine to the client. `tokens_per_second` is 1 / TPOT: the pace after the first token, None
    for answers of one token. ITLs are gaps between pieces of text as they leave the server. Where
    progress was asked for, there are also the place in the queue and the wait as expected at first, and the
    progress of the prompt.
    """
    each = list(zip(stats, times.paces, strict=True))
    slowest, pace = max(each, key=lambda pair: pair[0].e2e_s)
    slowest_times: dict[str, Any] = _times(slowest, pace, times.ttft_s, times.e2e_s)
    if len(each) == 1:
        return slowest_times
    choices = [  # with their tokens, which `usage` has in one sum
        {"completion_tokens": stat.n_output, "cached_tokens": stat.n_cached}
        | _times(stat, pace, pace.ttft_s, pace.e2e_s)
        for stat, pace in each
    ]
    return slowest_times | {"choices": choices}


def _times(stats: RequestStats, pace: Pace, ttft_s: float | None, e2e_s: float | None) -> dict[str, Any]:
    tpot_s = stats.tpot_s
    return {
        "intake_s": stats.intake_s,
        "queue_s": stats.queue_s,
        "prefill_s": stats.prefill_s,
        "ttft_s": ttft_s,
        "decode_s": stats.decode_s,
        "e2e_s": e2e_s,
        "tokens_per_second": 1 / tpot_s if tpot_s else None,
        **pace.itl(),
        **pace.progress,
    }
