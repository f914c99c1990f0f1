"""A conversation with a server over chat completions, which measures how much of each prompt is cached."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import httpx2

from cobali_ray.core.cache.placement import n_shared

TIMEOUT_S = 300.0


class MeasuredTurn(NamedTuple):
    """One prompt, in tokens."""

    n_prompt: int
    n_reusable: int
    """Those that it begins with like an earlier prompt of the conversation, and what was answered to it."""
    n_cached: int
    """Those that the server had cached."""


class MeasuredConversation:
    """Its messages so far. Answers all have the given length, so that the next prompt's is known."""

    def __init__(self, http: httpx2.Client, system: str, *, n_answer: int, priority: int = 0) -> None:
        """`priority`: the class of its requests."""
        self._http = http
        self._messages = [{"role": "system", "content": system}]
        self._n_answer, self._priority = n_answer, priority
        self._past: list[array[int]] = []

    def ask(self, url: str, text: str, *, request_id: str = "", times: int = 1) -> MeasuredTurn:
        """Send a message and wait for the whole answer, `times` as long. Raises httpx2.HTTPError."""
        self._messages.append({"role": "user", "content": text})
        body = {
            "messages": self._messages, "max_tokens": times * self._n_answer, "ignore_eos": True,
            "temperature": 0, "return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False},
            "priority": self._priority,
        }  # fmt: skip
        named = {"x-request-id": request_id} if request_id else {}
        reply = self._http.post(f"{url}/v1/chat/completions", json=body, headers=named, timeout=TIMEOUT_S)
        answer = reply.raise_for_status().json()
        choice, n_cached = answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        prompt = array("i", answer["prompt_token_ids"])
        n_reusable = max([n_shared(prompt, earlier, len(prompt)) for earlier in self._past], default=0)
        self._messages.append({"role": "assistant", "content": choice["message"]["content"] or ""})
        self._past.append(prompt + array("i", choice["token_ids"]))
        return MeasuredTurn(len(prompt), n_reusable, n_cached)
