"""POST /v1/responses and what belongs to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.reading import MustWait, check_choice, parse
from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext, context_of, owner_of
from cobali_ray.api.door.keeping import Keeping, page
from cobali_ray.api.reply.answer import Writer
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.responses.background import (
    BackgroundWriter,
    Record,
    RecordedRun,
    StoredStream,
    StreamBells,
)
from cobali_ray.api.responses.frames import ID_PREFIX, ResponseWriter
from cobali_ray.api.responses.items import EarlierItems, references, resolved, with_ids
from cobali_ray.api.responses.read import ResponseTemplate, read
from cobali_ray.api.responses.schema import ResponsesBody
from cobali_ray.api.routes.generation import Dialect, Generation, ParsedBody
from cobali_ray.api.routes.openapi import (
    BODY_STATUSES,
    STORE_STATUSES,
    Routes,
    errors,
    generation_responses,
    query,
)
from cobali_ray.errors import InvalidParameterError, NotInStoreError, UnsupportedParameterError
from cobali_ray.settings import ApiSettings
from cobali_ray.store import conversations, responses
from cobali_ray.store.responses import BegunResponse, NewResponse, ResponseOrigin

MAX_LISTED, N_LISTED = 100, 20
_STREAM: dict[str, Any] = {
    "parameters": [
        query("stream", "Read the stream of a response in the background.", type="boolean", default=False),
        query(
            "starting_after", "The `sequence_number` of the last event received.", type="integer", minimum=0
        ),
    ]
}
LISTED: dict[str, Any] = {
    "parameters": [
        query("after", "The id of the item before the first one.", type="string"),
        query("limit", "Page size.", type="integer", minimum=1, maximum=MAX_LISTED, default=N_LISTED),
        query("order", "asc: oldest first; desc: newest first.", type="string", default="desc"),
    ]
}


class _PendingResponse:
    """A body and what was read for it, on the way to a response."""

    body: ResponsesBody
    raw: bytes
    written: ResponseTemplate
    items = b""
    """Those of the input, where they are kept."""
    origin = ResponseOrigin()
    earlier: Sequence[bytes] | None = None
    """The conversation so far, once it is fetched: lists of items in JSON."""
    referenced: Mapping[str, dict[str, Any]]
    """Items that the input only references, by their ids, once they are fetched."""

    def __init__(self, context: RequestContext, *, keeps: bool, begun: BegunResponse | None = None) -> None:
        """If it `keeps`, it is stored unless its body says otherwise; `begun` is what is stored already."""
        self.context, self.keeps, self.begun = context, keeps, begun
        self.id, self.created_s = f"{ID_PREFIX}{uuid.uuid4().hex}", 0
        if begun is not None:
            self.id, self.created_s, self.origin = begun.id, begun.created_s, begun.origin

    @property
    def continues(self) -> bool:
        return bool(self.body.previous_response_id or self.body.conversation)

    def new(self, created_s: int) -> NewResponse:
        caller = self.context.caller
        return NewResponse(self.id, caller.salt, caller.tenant, self.origin, created_s, self.items)

    def earlier_items(self) -> EarlierItems:
        field = "previous_response_id" if self.body.previous_response_id else "conversation"
        return EarlierItems(
            field, [item for items_json in self.earlier or () for item in orjson.loads(items_json)]
        )


class Responses:
    def __init__(
        self,
        generation: Generation,
        settings: ApiSettings,
        keeping: Keeping,
        clock: ApiClock,
        wake: Callable[[], None],
    ) -> None:
        """`wake` says that a response waits to be computed."""
        self._generation, self._settings, self._keeping = generation, settings, keeping
        self._clock, self._wake = clock, wake
        self.bells = StreamBells()

    def routes(self) -> Routes:
        routes = Routes("responses")
        path, wrong = "/v1/responses/{response_id}", errors(*STORE_STATUSES)
        routes.post("/v1/responses", self.create, ResponsesBody, generation_responses() | errors(501))
        routes.post("/v1/responses/input_tokens", self.count, ResponsesBody, errors(*BODY_STATUSES, 501))
        routes.get(path, self.find, responses=wrong, openapi_extra=_STREAM)
        routes.add("DELETE", path, self.delete, responses=wrong)
        routes.get(f"{path}/input_items", self.input_items, responses=wrong, openapi_extra=LISTED)
        routes.add("POST", f"{path}/cancel", self.cancel, responses=wrong)
        return routes

    async def create(self, http: HttpRequest) -> Response:
        """Create a response, whole or as a stream of events."""
        pending = _PendingResponse(context_of(http), keeps=self._keeping.on)
        read_call = await self._generation.take(http, partial(self._read, pending))
        if not pending.body.background:
            return self._generation.reply(read_call, pending.context)
        call = read_call.call
        body, events = BackgroundWriter(pending.written, call, call.created).queued()
        await self._keeping(
            responses.queue,
            pending.new(call.created),
            body,
            pending.raw,
            events if call.stream else b"",
            self._keeping.quota(),
        )
        self._wake()
        if call.stream:
            return self._stream(pending.context, pending.id, 0, call.ping_s)
        return Response(body, media_type="application/json")

    async def answer_line(self, http: HttpRequest) -> Response:
        """Answer a line of a batch, which is kept there, and stored here only if its body says so."""
        pending = _PendingResponse(context_of(http), keeps=False)
        read_call = await self._generation.take(http, partial(self._read, pending))
        if pending.body.background:
            raise UnsupportedParameterError("background", "is not for a line of a batch")
        return self._generation.reply(read_call, pending.context)

    async def run(self, http: HttpRequest, begun: BegunResponse, attempt: int, record: Record) -> Response:
        """Compute a response in the background, after what is stored of it; `attempt` counts in this process.

        Only the very first has the response's id at the engine, which may still be busy with an earlier one.
        """
        pending = _PendingResponse(context_of(http), keeps=True, begun=begun)
        read_call = await self._generation.take(http, partial(self._read, pending))
        call = read_call.call
        writer = BackgroundWriter(pending.written, call, self._clock.unix())
        is_first = (begun.n_begun, attempt) == (1, 1)
        request = replace(
            call.requests[0],
            request_id=pending.id if is_first else f"{pending.id}~{begun.n_begun}.{attempt}",
            sent_tokens=tuple(writer.resume(begun.rows)),
            progress=False,
        )
        call = replace(
            call,
            requests=(request,),
            stream=True,
            resumable=False,
            stored=False,
            progress=(),
            ping_s=0.0,
        )
        read_call = read_call._replace(call=call, dialect=read_call.dialect._replace(writer=lambda _: writer))
        return RecordedRun(self._generation.reply(read_call, pending.context), writer, record)

    async def count(self, http: HttpRequest) -> Response:
        """Count the input tokens of a response."""
        pending = _PendingResponse(context_of(http), keeps=False)
        prompted = await self._generation.prompt(http, partial(self._read, pending))
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompted.tokens)})

    async def find(self, http: HttpRequest, response_id: str) -> Response:
        """Return a stored response, or the stream of a background response."""
        context, params = context_of(http), http.query_params
        check_choice("stream", streams := params.get("stream", "false").lower(), ("true", "false"))
        if streams == "false" or http.method == "HEAD":
            body = await self._keeping(responses.find, context.caller.salt, response_id)
            return Response(body, media_type="application/json")
        first = 0
        if (after := params.get("starting_after")) is not None:
            first = whole_number(after, "starting_after", low=0, high=2**31) + 1
        await self._keeping(
            responses.stream, context.caller.salt, response_id, first
        )  # raises where there is no such stream
        return self._stream(context, response_id, first, self._settings.sse_ping_interval)

    async def delete(self, http: HttpRequest, response_id: str) -> Response:
        """Delete a response; a background response is stopped."""
        await self._keeping(responses.delete, owner_of(http), response_id)
        self._wake()
        self.bells.ring(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, http: HttpRequest, response_id: str) -> Response:
        """List the input of a response, earlier turns included."""
        after, limit, newest = requested_page(http)
        items = await self._keeping(
            responses.input_items,
            owner_of(http),
            response_id,
            self._keeping.max_body_bytes,
            after=after,
            limit=limit + 1,
            newest=newest,
        )
        return json_response(page(items, limit))

    async def cancel(self, http: HttpRequest, response_id: str) -> Response:
        """Stop a background response."""
        body = await self._keeping(responses.cancel, owner_of(http), response_id)
        self._wake()
        self.bells.ring(response_id)
        return Response(body, media_type="application/json")

    def _stream(self, context: RequestContext, response_id: str, first: int, ping_s: float) -> Response:
        context.stream = True
        return StoredStream(
            self._keeping,
            self.bells,
            self._clock,
            owner=context.caller.salt,
            response_id=response_id,
            first=first,
            ping_s=ping_s,
        )

    # -- in a thread of the intake

    def _read(self, pending: _PendingResponse, context: RequestContext, raw: bytes) -> ParsedBody:
        pending.raw, pending.body = raw, parse(ResponsesBody, raw)
        kept = self._is_kept(pending)
        named = references(pending.body.input) if self._keeping.on else []
        if pending.earlier is None and (pending.continues or named):
            raise MustWait(partial(self._fetch, pending, named))
        if named:
            pending.body = pending.body.model_copy(
                update={"input": resolved(pending.body.input, pending.referenced)}
            )
        strict, earlier = self._settings.strict, pending.earlier_items()
        parsed = read(pending.body, strict=strict, kept=kept, earlier=earlier)
        context.ignore(parsed.ignored)
        context.named = parsed.named
        pending.written = parsed.written
        if kept and pending.begun is None:
            pending.items = orjson.dumps(with_ids(pending.body.input))

        def writer(call: Call) -> Writer:
            keep = partial(self._keep, pending, call.created) if kept else None
            return ResponseWriter(parsed.written, call, keep)

        return ParsedBody(parsed.chat, Dialect(ID_PREFIX, writer, pending.id, pending.created_s))

    def _is_kept(self, pending: _PendingResponse) -> bool:
        """Say whether a response is to be kept. Raises NoStoreError and InvalidParameterError."""
        body = pending.body
        if body.background or pending.continues:
            self._keeping.require()
        if body.store is False and (body.background or body.conversation):
            what = "background" if body.background else "conversation"
            raise InvalidParameterError("store", ("store",), " must not be false with ", (what,))
        if body.previous_response_id and body.conversation:
            raise InvalidParameterError(
                "conversation", ("conversation",), " cannot be used with ", ("previous_response_id",)
            )
        keeps = pending.keeps if body.store is None else body.store
        return self._keeping.on and bool(keeps or body.conversation)

    # -- the store

    async def _fetch(self, pending: _PendingResponse, named: Sequence[str]) -> None:
        """Fetch the conversation so far, and referenced items. Raises InvalidParameterError."""
        body, keeping, owner = pending.body, self._keeping, pending.context.caller.salt
        previous_id, conversation_id = body.previous_response_id or "", body.conversation or ""
        try:
            if pending.begun is None:
                n = await keeping(conversations.position, owner, conversation_id) if conversation_id else 0
                pending.origin = ResponseOrigin(previous_id, conversation_id, n)
            pending.earlier = await keeping(responses.history, owner, pending.origin, keeping.max_body_bytes)
            pending.referenced = await keeping(responses.referenced, owner, named, keeping.max_body_bytes)
        except NotInStoreError as error:
            field = "previous_response_id" if previous_id else "conversation"
            raise InvalidParameterError(
                field, f": there is no {error.what} with the id '{error.object_id}'"
            ) from None

    async def _keep(self, pending: _PendingResponse, created_s: int, body: dict[str, Any]) -> None:
        written, quota = orjson.dumps(body), self._keeping.quota()
        await self._keeping(responses.keep, pending.new(created_s), written, body["output"], quota)


def requested_page(http: HttpRequest) -> tuple[str | None, int, bool]:
    """Return which items of a list are requested: behind which one, how many, whether the newest first."""
    params = http.query_params
    check_choice("order", order := params.get("order", "desc"), ("asc", "desc"))
    limit = whole_number(params.get("limit", str(N_LISTED)), "limit", low=1, high=MAX_LISTED)
    return params.get("after"), limit, order == "desc"
