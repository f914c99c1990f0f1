"""Intake: bodies are read on the event loop, and what they ask is worked out off it.

Reading JSON, checking it, applying a chat template and tokenising take milliseconds for what people send and
seconds for what they can send, and the event loop belongs to all streams. So this work runs in threads: there
Python changes hands every few milliseconds, and llama.cpp holds nobody up. What would hold the interpreter
longer in one piece is refused by counting first (`body/reading.py`, `body/schema.py`). Small bodies have
threads of their own, so that none waits behind a large one. Grammars are judged elsewhere (`judges.py`).

Bounded are the values of JSON and the named ones among them, the fields of an object, biases, and messages,
of which each has a token at least. A text whose bytes could not fit even with the longest tokens is refused
unread; tokenising stops at too many tokens, or when the client has left. The bodies being worked on have,
together, at most eight times the size of the largest that is allowed.

What waits for a model or for a verdict holds only the bytes, and reads them again: 64 KiB are read in 0.2 ms,
and their values may take twenty times their memory. It is not tokenised before (`routes/generation.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fastapi import Request as HttpRequest

from cobali_ray.api.body.fields import NEUTRAL_FIELDS, REFUSED_FIELDS, read_as
from cobali_ray.api.body.reading import MustWait, ShapeT, mended, read_body
from cobali_ray.api.call.judges import Judges
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.engines.apart import unless_gone
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.backend.port import Words
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.errors import (
    ModelNotAllowedError,
    PromptTooLongError,
    QueueFullError,
    TooManyTokensError,
    UnloadedError,
)
from cobali_ray.settings import ApiSettings

ResultT = TypeVar("ResultT")

SMALL_BYTES = 65_536
"""Larger bodies queue for a thread of their own."""
N_SMALL, N_LARGE = 2, 1
"""Threads. More of them would only take the interpreter from the event loop more often."""
HELD_BODIES, HELD_OF_TENANT = 8, 4
"""So many bodies of the largest size may be inside at once, together, and of one tenant; then comes 429."""
RETRY_AFTER_S = 1.0


Work: TypeAlias = Callable[[RequestContext, bytes], ResultT]
"""Makes a result of a body, in a thread; where that takes long, it calls `context.client_left`."""


class Source(NamedTuple):
    """What a body is read with, by one thread."""

    model: ServedModel
    card: ModelCard
    """Under the name that was asked for, where that is an adapter's."""
    words: Words
    context: RequestContext


class _ModelNotLoaded(MustWait):
    """A body asks for a model that has to be loaded first."""


def requested_model(fleet: Fleet, name: str | None, context: RequestContext) -> ServedModel:
    """Return the model that a body names. Raises what `Fleet.find` does, and ModelNotAllowedError."""
    model, allowed = fleet.find(name), context.caller.terms.models
    if allowed and (own_name := name or model.names[0]) not in allowed:
        raise ModelNotAllowedError(own_name)
    return model


async def loaded_model(fleet: Fleet, name: str | None, context: RequestContext) -> ServedModel:
    """Return the model that a query names, loaded if it was not. Raises what `source_of` does."""
    model = requested_model(fleet, name, context)
    try:
        _ = model.card, model.words
    except UnloadedError:
        await model.load()
    return model


def source_of(fleet: Fleet, name: str | None, context: RequestContext) -> Source:
    """Return the source of a body that names this model; called by the work that an Intake does.

    Raises what `requested_model` does, and LoadingError. A model that is not loaded is loaded by the intake,
    which then does the work again.
    """
    model = requested_model(fleet, name, context)
    try:
        card = model.card.under(name)
        context.model = card.model_id
        return Source(model, card, model.words, context)
    except UnloadedError:
        raise _ModelNotLoaded(model.load) from None


def tokens_of_prompt(source: Source, text: str, n_answer: int, *, add_special: bool) -> list[int]:
    """Return the tokens of a text. Raises PromptTooLongError as soon as they leave no place in a slot."""
    n_most = source.card.n_ctx_slot
    try:
        return source.words.tokenize(
            text, add_special=add_special, n_most=n_most, is_cancelled=source.context.client_left
        )
    except TooManyTokensError as error:
        raise PromptTooLongError(error.n_least, n_answer, n_most, True) from None


class Intake:
    """One per process. Call it on the event loop."""

    def __init__(self, settings: ApiSettings, judges: Judges) -> None:
        self._max_body_bytes, self._strict, self.judges = settings.max_body_bytes, settings.strict, judges
        self._n_held_bytes = Counter[str]()
        self._small = ThreadPoolExecutor(N_SMALL, thread_name_prefix="intake")
        self._large = ThreadPoolExecutor(N_LARGE, thread_name_prefix="intake-large")

    async def read(
        self,
        http: HttpRequest,
        shape: type[ShapeT],
        neutral: frozenset[str] = NEUTRAL_FIELDS,
        refused: Mapping[str, tuple[Any, ...]] = REFUSED_FIELDS,
    ) -> ShapeT:
        """Read the body as a shape and nothing more; raises what `take` and `read_as` do."""
        work = partial(read_as, shape, neutral=neutral, refused=refused, strict=self._strict)
        return await self.take(http, work)

    async def take(self, http: HttpRequest, work: Work[ResultT]) -> ResultT:
        """Read the body and return what `work` makes of it in a thread.

        Raises:
            BodyTooLargeError, BodyTimeoutError, UnsupportedEncodingError: the body cannot be read.
            QueueFullError: too many bytes are inside already.
            ClientDisconnect: the client left meanwhile.
        """
        n_mine, tenant = 0, context_of(http).caller.tenant

        def hold(n_bytes: int) -> None:
            nonlocal n_mine
            held = self._n_held_bytes
            bounds = [(held.total(), HELD_BODIES)] + ([(held[tenant], HELD_OF_TENANT)] if tenant else [])
            for n_held, n_bodies in bounds:
                if n_held + n_bytes > (most := n_bodies * self._max_body_bytes):
                    raise QueueFullError("bytes of request bodies", most, RETRY_AFTER_S)
            held[tenant] += n_bytes
            n_mine += n_bytes

        try:
            body = await read_body(http, self._max_body_bytes, hold)
            context = context_of(http)

            def mend_and_work() -> ResultT:
                whole, context.mended = mended(body)
                return work(context, whole)

            pool = self._small if len(body) <= SMALL_BYTES else self._large
            loaded = False
            while True:
                try:
                    return await unless_gone(http.receive, self._off_the_loop(pool, context, mend_and_work))
                except MustWait as missing:
                    if isinstance(missing, _ModelNotLoaded):
                        if loaded:  # and unloaded again
                            raise UnloadedError from None
                        loaded = True
                    await unless_gone(http.receive, missing.fetch())
        finally:
            self._n_held_bytes[tenant] -= n_mine
            if not self._n_held_bytes[tenant]:
                del self._n_held_bytes[tenant]

    async def _off_the_loop(
        self, pool: ThreadPoolExecutor, context: RequestContext, work: Callable[[], ResultT]
    ) -> ResultT:
        left = threading.Event()
        context.client_left = left.is_set
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except asyncio.CancelledError:
            left.set()
            raise
