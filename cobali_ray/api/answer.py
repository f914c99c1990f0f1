"""Finished choices -> the body of an answer; usage and timings of both kinds of answer. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from cobali_ray.api.logprobs import ChatLogprobs, CompletionLogprobs, PromptLogprobs, WholeLogprobs
from cobali_ray.api.translate import Call
from cobali_ray.api.turn import News, message_of, turns_of
from cobali_ray.chat.splitter import Answer as TakenApart
from cobali_ray.core.events import End, RequestStats, TokenLogprob


class Pace:
    """The times of one choice, in seconds from the arrival of the HTTP request."""

    __slots__ = ("_gaps_s", "_last_s", "e2e_s", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s: float | None = None
        """To its first text; None before."""
        self.e2e_s: float | None = None
        """To its end; None before."""
        self._last_s = 0.0
        self._gaps_s = array("d")

    def speak(self, now_s: float) -> None:
        if self.ttft_s is None:
            self.ttft_s = now_s
        else:
            self._gaps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def end(self, now_s: float, *, spoke: bool) -> None:
        """Note its end; `spoke` even if none of its tokens had text."""
        self.e2e_s = now_s
        if spoke and self.ttft_s is None:
            self.ttft_s = now_s

    def itl(self) -> dict[str, float | None]:
        """Return the median, the 99th percentile and the longest of its gaps; None where there is none."""
        gaps = sorted(self._gaps_s)
        shares = {"itl_p50_s": 0.5, "itl_p99_s": 0.99, "itl_max_s": 1.0}
        return {name: gaps[ceil(share * len(gaps)) - 1] if gaps else None for name, share in shares.items()}


class Times(NamedTuple):
    """What the client waits for, in seconds from the arrival of its HTTP request."""

    ttft_s: float | None
    """To the first text: ready to be sent, or here for an answer in one piece; None before."""
    e2e_s: float
    """To now, or to the end of the answer."""
    paces: Sequence[Pace] = ()
    """One per choice; none where no text is generated."""


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    logprobs: WholeLogprobs
    prompt: PromptLogprobs | None = None
    """Where `prompt_logprobs` asks for them."""
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Where `return_token_ids` asks for them."""
    end: End | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Writing:
    """What an API writes of one call. Choices are named by their index."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def finish_reason(self, index: int, end: End) -> str | None:  # noqa: ARG002 most have one word for it
        """Return why a choice ended, in the words of the API."""
        return end.finish_reason


class Answer(Writing, ABC):
    """An answer in one piece, as its choices grow."""

    @abstractmethod
    def add(self, news: News) -> None:
        """Take what a batch adds to one choice."""

    @abstractmethod
    def body(self, times: Times) -> Any:
        """Return the body; every choice has ended."""


class Choices(Answer):
    """OpenAI's bodies."""

    kind: str

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        n_top = call.n_prompt_logprobs
        self.choices = [
            Choice(self._logprobs(index), None if n_top is None else PromptLogprobs(n_top))
            for index in range(len(call.requests))
        ]

    def add(self, news: News) -> None:
        self._add(news, news.logprobs)

    def body(self, times: Times) -> Any:
        call = self._call
        stats = [choice.end.stats for choice in self.choices if choice.end]
        return {
            "id": call.call_id,
            "object": self.kind,
            "created": call.created,
            "model": call.model,
            "system_fingerprint": call.fingerprint,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self.choices)],
            "usage": usage(call, stats, self._n_reasoning),
            "timings": timings(stats, times),
            **self._more(),
        }

    def _more(self) -> dict[str, Any]:
        return {}

    def _reason(self, index: int, choice: Choice) -> str | None:
        return None if choice.end is None else self.finish_reason(index, choice.end)

    def _add(self, news: News, logprobs: Sequence[TokenLogprob]) -> None:
        choice = self.choices[news.choice]
        choice.texts.append(news.text)
        if self._call.return_token_ids:
            choice.tokens += news.tokens
        if choice.prompt is not None:
            choice.prompt.add(news.prompt)
        choice.logprobs.add(logprobs)
        choice.end = news.end

    @property
    def _n_reasoning(self) -> int | None:
        return None

    @abstractmethod
    def _logprobs(self, index: int) -> WholeLogprobs: ...

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> dict[str, Any]: ...


class ChatAnswer(Choices):
    """The answer of POST /v1/chat/completions."""

    kind = "chat.completion"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._turns = turns_of(call.speech, call.call_id, len(call.requests))
        self._taken_apart = [TakenApart() for _ in self._turns]

    def add(self, news: News) -> None:
        if not self._turns:
            super().add(news)
            return
        events, logprobs = self._turns[news.choice].take(news)
        self._taken_apart[news.choice].add(events)
        self._add(news, logprobs)

    def finish_reason(self, index: int, end: End) -> str | None:
        return self._turns[index].finish_reason(end) if self._turns else end.finish_reason

    @property
    def _n_reasoning(self) -> int:
        return sum(turn.n_reasoning for turn in self._turns)

    def _logprobs(self, index: int) -> WholeLogprobs:  # noqa: ARG002 no offset
        return WholeLogprobs(ChatLogprobs())

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(index, choice),
            "logprobs": choice.logprobs.json() | {"refusal": None} if self._call.with_logprobs else None,
            "finish_reason": self._reason(index, choice),
            **({"token_ids": choice.tokens} if self._call.return_token_ids else {}),
        }

    def _more(self) -> dict[str, Any]:
        """Return what is told of the prompt: a chat has one, whatever `n` is."""
        prompt, call = self.choices[0].prompt, self._call
        logprobs = {} if prompt is None else {"prompt_logprobs": prompt.json()}
        return logprobs | ({"prompt_token_ids": call.prompt_token_ids(0)} if call.return_token_ids else {})

    def _message(self, index: int, choice: Choice) -> dict[str, Any]:
        if self._turns:
            return message_of(self._taken_apart[index], self._turns[index])
        return {"role": "assistant", "content": choice.text, "refusal": None}


class CompletionAnswer(Choices):
    """The answer of POST /v1/completions."""

    kind = "text_completion"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._echoed = [CompletionLogprobs(start, call.n_echo_logprobs) for start in call.echo_starts]

    def add(self, news: News) -> None:
        if self._call.n_echo_logprobs is not None and (prompt := news.prompt):
            self.choices[news.choice].logprobs.extend(self._echoed[news.choice].take(prompt))
        super().add(news)

    def _logprobs(self, index: int) -> WholeLogprobs:
        return WholeLogprobs(CompletionLogprobs(len(self._call.echoes[index])))

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        more: dict[str, Any] = {} if choice.prompt is None else {"prompt_logprobs": choice.prompt.json()}
        if self._call.return_token_ids:
            more |= {"token_ids": choice.tokens, "prompt_token_ids": self._call.prompt_token_ids(index)}
        return {
            "index": index,
            "text": self._call.echoes[index] + choice.text,
            "logprobs": choice.logprobs.json() if self._call.with_logprobs else None,
            "finish_reason": self._reason(index, choice),
            **more,
        }


def usage(call: Call, stats: Sequence[RequestStats], n_reasoning: int | None) -> dict[str, Any]:
    """Return the token counts of a call. `stats` has one element per choice.

    `n_reasoning` is None where answers cannot have any.
    A prompt counts once however many answers it gets, and so do its cached tokens: those of its first answer.
    """
    n_prompt, n_output = prompt_tokens(call, stats), sum(one.n_output for one in stats)
    details = {} if n_reasoning is None else {"completion_tokens_details": {"reasoning_tokens": n_reasoning}}
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "prompt_tokens_details": {"cached_tokens": sum(one.n_cached for one in stats[:: call.n])},
        **details,
    }


def prompt_tokens(call: Call, stats: Sequence[RequestStats]) -> int:
    """Return the prompt tokens of a call as the engine counts them: it knows what images come to."""
    return sum(one.n_prompt for one in stats[:: call.n])


def timings(stats: Sequence[RequestStats], times: Times) -> dict[str, Any]:
    """Return the whole way in seconds and its parts; of several choices those of the slowest, then of each.

    What `intake_s`, `queue_s` and `prefill_s` leave of `ttft_s`, and these and `decode_s` of `e2e_s`, is the
    way from the engine to the client. `tokens_per_second` is 1 / TPOT: the pace after the first token, None
    for answers of one token. ITLs are gaps between pieces of text as they leave the server.
    """
    each = list(zip(stats, times.paces, strict=True))
    slowest, pace = max(each, key=lambda pair: pair[0].e2e_s)
    told: dict[str, Any] = _times(slowest, pace, times.ttft_s, times.e2e_s)
    return told if len(each) == 1 else told | {"choices": [_choice_times(*one) for one in each]}


def _choice_times(one: RequestStats, pace: Pace) -> dict[str, Any]:
    """Return the times of one of several choices, and its tokens, which `usage` has in one sum."""
    counts = {"completion_tokens": one.n_output, "cached_tokens": one.n_cached}
    return counts | _times(one, pace, pace.ttft_s, pace.e2e_s)


def _times(
    one: RequestStats, pace: Pace, ttft_s: float | None, e2e_s: float | None
) -> dict[str, float | None]:
    tpot_s = one.tpot_s
    return {
        "intake_s": one.intake_s,
        "queue_s": one.queue_s,
        "prefill_s": one.prefill_s,
        "ttft_s": ttft_s,
        "decode_s": one.decode_s,
        "e2e_s": e2e_s,
        "tokens_per_second": 1 / tpot_s if tpot_s else None,
        **pace.itl(),
    }


def slowest_of(stats: Sequence[RequestStats]) -> RequestStats:
    return max(stats, key=lambda one: one.e2e_s)
