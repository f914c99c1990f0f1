"""Finished choices -> the body of an answer; usage and timings of both kinds of answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cobali_ray.api.logprobs import CompletionLogprobs, chat_logprob_items
from cobali_ray.api.translate import Call
from cobali_ray.core.events import End, FinishReason, RequestStats, TokenLogprob


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.texts)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it has not."""
        return self.end.finish_reason if self.end else None


def chat_answer(call: Call, choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the body of POST /v1/chat/completions."""
    return _answer(
        call,
        "chat.completion",
        choices,
        [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": {"content": chat_logprob_items(choice.logprobs), "refusal": None}
                if call.with_logprobs
                else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ],
    )


def completion_answer(call: Call, choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the body of POST /v1/completions."""
    return _answer(
        call,
        "text_completion",
        choices,
        [
            {
                "index": index,
                "text": call.echoes[index] + choice.text,
                "logprobs": CompletionLogprobs(len(call.echoes[index])).take(choice.logprobs)
                if call.with_logprobs
                else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ],
    )


def usage(call: Call, stats: Sequence[RequestStats]) -> dict[str, Any]:
    """Return the token counts of a call. `stats` has one element per choice.

    A prompt counts once however many answers it gets, and so do its cached tokens: those of its first answer.
    """
    n_output = sum(one.n_output for one in stats)
    return {
        "prompt_tokens": call.n_prompt,
        "completion_tokens": n_output,
        "total_tokens": call.n_prompt + n_output,
        "prompt_tokens_details": {"cached_tokens": sum(one.n_cached for one in stats[:: call.n])},
    }


def timings(stats: Sequence[RequestStats]) -> dict[str, float | None]:
    """Return the engine's times in seconds; of several choices, those of the one that took longest.

    `tokens_per_second` is 1 / TPOT: the pace after the first token, None for answers of one token.
    """
    slowest = slowest_of(stats)
    tpot_s = slowest.tpot_s
    return {
        "queue_s": slowest.queue_s,
        "prefill_s": slowest.prefill_s,
        "ttft_s": slowest.ttft_s,
        "decode_s": slowest.decode_s,
        "e2e_s": slowest.e2e_s,
        "tokens_per_second": 1 / tpot_s if tpot_s else None,
    }


def slowest_of(stats: Sequence[RequestStats]) -> RequestStats:
    """Return the numbers of the choice that ended last."""
    return max(stats, key=lambda one: one.e2e_s)


def _answer(
    call: Call, kind: str, choices: Sequence[Choice], wire_choices: list[dict[str, Any]]
) -> dict[str, Any]:
    stats = [choice.end.stats for choice in choices if choice.end]
    return {
        "id": call.call_id,
        "object": kind,
        "created": call.created,
        "model": call.model,
        "system_fingerprint": call.fingerprint,
        "choices": wire_choices,
        "usage": usage(call, stats),
        "timings": timings(stats),
    }
