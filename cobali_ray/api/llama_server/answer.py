"""Answers and streams as llama-server writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cobali_ray.api.body.fields import SAMPLERS
from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.llama_server.body import ParsedNativeBody
from cobali_ray.api.reply.answer import Choice, Choices
from cobali_ray.api.reply.logprobs import Lists, WholeLogprobs, chat_item
from cobali_ray.api.reply.sse import event
from cobali_ray.api.reply.turn import Update
from cobali_ray.api.reply.vectors import Rows, in_parts
from cobali_ray.core.request.events import End, RequestStats, TokenLogprob
from cobali_ray.core.request.request import Request

ANY_SLOT = -1
"""The scheduler chooses slots."""


class NativeWriter(Choices):
    """The answer of POST /completion and POST /infill: an object, a list of them, or a stream."""

    def __init__(self, call: Call, native: ParsedNativeBody) -> None:
        super().__init__(call)
        self._native = native
        self._n_output = [0] * len(call.requests)
        self._new_line = [False] * len(call.requests)

    def add(self, update: Update) -> None:
        super().add(_silenced(update) if self._native.silent else update)

    def body(self, times: Timings) -> Any:
        answers = [self._choice(index, choice) for index, choice in enumerate(self.choices)]
        for answer, pace in zip(answers, times.paces, strict=True):
            answer["timings"] |= pace.progress
        selected = [_only(answer, self._native.response_fields) for answer in answers]
        return selected[0] if len(selected) == 1 else selected

    def _kept_logprobs(self, index: int) -> WholeLogprobs:  # noqa: ARG002 no offset
        return WholeLogprobs(_probabilities)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        answer = _closed(self._call, self._native, index, choice.end, choice.text)
        answer["tokens"] = choice.tokens  # none, unless they are asked for
        if self._call.with_logprobs:
            answer |= choice.logprobs.json()
        if choice.prompt is not None:
            answer |= choice.prompt.json()
        return answer

    # -- as a stream, whose last event has `stop`

    def say(self, update: Update) -> bytes:
        index, text = update.choice, update.text
        tokens = update.tokens
        self._n_output[index] += len(tokens)
        if self._native.silent or not (text or update.logprobs):
            return b""
        self._new_line[index] = self._new_line[index] or "\n" in text
        chunk = self._chunk(index, text, tokens)
        if self._call.with_logprobs:
            chunk |= _probabilities(update.logprobs)
        return event(chunk)

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:
        return event(self._chunk(index, "", []) | fields)

    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:
        del stats
        answer = _closed(self._call, self._native, index, end, "")
        answer["timings"] |= times.paces[index].progress
        answer["tokens"] = []
        answer["has_new_line"] = self._new_line[index]
        return event(_only(answer, self._native.response_fields))

    def failure(self, fault: Fault) -> bytes:
        return event(fault.body)

    def _chunk(self, index: int, text: str, tokens: list[int]) -> dict[str, Any]:
        return {
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": ANY_SLOT,
            "tokens_predicted": self._n_output[index],
            "tokens_evaluated": self._call.requests[index].n_prompt,
        }


def _closed(call: Call, native: ParsedNativeBody, index: int, end: End, text: str) -> dict[str, Any]:
    request, stats = call.requests[index], end.stats
    return {
        "index": index,
        "content": text,
        "id_slot": ANY_SLOT,
        "stop": True,
        "model": call.model,
        "tokens_predicted": 0 if native.silent else stats.n_output,
        "tokens_evaluated": stats.n_prompt,
        "generation_settings": generation_settings(request, stream=call.stream),
        "prompt": native.prompts[index // call.n],
        "has_new_line": "\n" in text,
        "truncated": False,
        "stop_type": stop_type(end),
        "stopping_word": end.stop or "",
        "tokens_cached": stats.n_cached,
        "timings": native_timings(stats),
    }


def native_vectors(rows: Rows, model: str, n_tokens: int) -> Iterator[bytes]:
    """Yield llama-server's list of embeddings: each is a list of vectors, of which pooling leaves one."""
    del model, n_tokens
    yield b"["
    yield from in_parts(rows, lambda i, row: {"index": i, "embedding": [row]})
    yield b"]"


def stop_type(end: End) -> str:
    """Return why an answer ended: eos, limit or word."""
    if end.finish_reason == "length":
        return "limit"
    return "eos" if end.stop is None else "word"


def native_timings(stats: RequestStats) -> dict[str, float]:
    """Return the times of one answer, in milliseconds; 0 where there were none."""
    n_prompt, prefill_s, decode_s = stats.n_prompt - stats.n_cached, stats.prefill_s or 0, stats.decode_s or 0
    tpot_s = stats.tpot_s or 0
    return {
        "cache_n": stats.n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": prefill_s * 1e3,
        "prompt_per_token_ms": prefill_s * 1e3 / n_prompt if n_prompt else 0,
        "prompt_per_second": n_prompt / prefill_s if prefill_s else 0,
        "predicted_n": stats.n_output,
        "predicted_ms": decode_s * 1e3,
        "predicted_per_token_ms": tpot_s * 1e3,
        "predicted_per_second": 1 / tpot_s if tpot_s else 0,
    }


def generation_settings(request: Request, *, stream: bool) -> dict[str, Any]:
    params = request.sampling
    return {
        "seed": params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "top_n_sigma": params.top_n_sigma,
        "typical_p": params.typical_p,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "ignore_eos": params.ignore_eos,
        "stream": stream,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in params.logit_bias],
        "n_probs": params.n_logprobs or 0,
        "samplers": list(SAMPLERS),
    }


def _silenced(update: Update) -> Update:
    deltas = [delta._replace(text="", tokens=(), logprobs=()) for delta in update.deltas if delta.prompt]
    return update._replace(deltas=deltas)


def _only(answer: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that a client wants; `a/b` is b of a, and missing ones are left out."""
    if not names:
        return answer
    selected = {}
    for name in names:
        value: Any = answer
        for step in name.split("/"):
            value = value.get(step, ...) if isinstance(value, dict) else ...
        if value is not ...:
            selected[name] = value
    return selected


def _probabilities(logprobs: Iterable[TokenLogprob]) -> Lists:
    return {"completion_probabilities": [_probability(logprob) for logprob in logprobs]}


def _probability(token: TokenLogprob) -> dict[str, Any]:
    top = [_alternative(*alternative) for alternative in token.top]
    return _alternative(token.token_id, token.piece, token.logprob) | {"top_logprobs": top}


def _alternative(token: int, piece: bytes, logprob: float | None) -> dict[str, Any]:
    return {"id": token} | chat_item(piece, logprob)
