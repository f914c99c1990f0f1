"""A scripted EngineClient, a clock that tests own, and a raw ASGI driver."""

import asyncio
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import orjson

from cobali_ray.backend.markers import Markers
from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.core.dispatch.messages import Attended, Described, EventsReceived, Lost, Returned
from cobali_ray.core.request.events import Delta, End, RequestStats, TokenLogprob
from cobali_ray.core.views.cache import CacheView, SlotMove, SlotView
from cobali_ray.core.views.stats import Attendance, EngineState, EngineStatus, LoadView, ModelCard, TickFeed
from cobali_ray.errors import (
    BadRequestError,
    EngineDiedError,
    InternalError,
    InvalidParameterError,
    TooManyTokensError,
)
from cobali_ray.telemetry.exposition import EngineMetrics, Presence
from cobali_ray.telemetry.feed import lives_json

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
CARD = ModelCard(model_id="fake", n_vocab=1000, n_ctx_slot=64, created_s=1_700_000_000)
BOS = 0
IDLE = LoadView(ahead=(), n_free=4, slot_s=1.0, token_s=0.001, depth_s=0.0, n_kept=1 << 20)
HELD = CacheView(
    slots=(SlotView(0, 120), SlotView(1, 44, "r1", 40, 40, 32, 5, 7), SlotView(2, 0)),
    n_ctx_slot=1024,
    kv_cells={"n": 3072, "n_running": 44, "n_idle": 120, "n_free": 2908},
    host={"bytes": 64_000, "limit_bytes": 500_000},
    states={"bytes": 3000, "limit_bytes": 7000},
    disk={"bytes": 0},
    tier_requests={"none": 5, "slot": 2, "copy": 0, "host": 1},
    tier_tokens={"none": 600, "slot": 300, "copy": 0, "host": 100},
    settings={"n_slots": 3},
)  # fmt: skip


def stats(request, n_output, *, n_cached=1, e2e_s=0.5):
    return RequestStats(request.n_prompt, n_cached, n_output, 0.01, 0.09, 0.1, 0.4, e2e_s)


def words(text):
    """Split so that the pieces joined are the text."""
    return re.findall(r"\s*\S+|\s+", text)


def logprob_of(piece, k):
    top = tuple((i, f"alt{i}".encode(), -1.0 - i) for i in range(k))
    return TokenLogprob(1, piece.encode(), -0.5, top)


def says(*deltas, reason="stop"):
    """Script: one batch per delta, a wake-up each, then the end."""

    def script(request):
        k = request.sampling.n_logprobs
        for text in deltas:
            logprobs = () if k is None else (logprob_of(text, k),)
            yield [Delta(request.request_id, text, (1,), logprobs)]
        yield [End(request.request_id, reason, None, stats(request, len(deltas)))]

    return script


def ends_with(error, *deltas):
    """Script: deltas, then an end event with an error; where it goes on behind the deltas, only that."""

    def script(request):
        if not request.attempt:
            yield from ([Delta(request.request_id, text, (1,))] for text in deltas)
        yield [End(request.request_id, None, error, stats(request, len(deltas)))]

    return script


class Said:
    """A script that says a word whenever the test lets it."""

    def __init__(self):
        self.words, self._more = [], asyncio.Event()

    def __call__(self, request):
        n = 0
        while True:
            while n == len(self.words):
                self._more.clear()
                yield self._more
            if (word := self.words[n]) is None:
                yield [End(request.request_id, "stop", None, stats(request, n))]
                return
            n += 1
            yield [Delta(request.request_id, word, (1,))]

    def say(self, *words):
        self.words += words
        self._more.set()


class FakeClient:
    """Plays `script(request)`: a list is a batch, an exception ends it, an asyncio.Event is waited for.

    A step is taken when the reader waits for it. How the engine is may be changed at any time: `present`,
    `engine`, `busy` and `the_model` are announced. Several apps may have the same one.
    """

    _ANNOUNCED = frozenset({"present", "engine", "busy", "the_model"})

    def __init__(self, script=None, card=CARD):
        self.playing, self.apps = {}, []
        self.script = script or says("Hello", " world", "!")
        self.the_card = card
        self.requests, self.cancelled, self.messages, self.tokenized = [], [], [], []
        self.endings, self.observed, self.tools = [], [], []
        self.answers = Counter()
        self.n_open, self.most_open = 0, 0
        self.the_model = "one file"
        self.present, self.card_when_loaded = True, card
        self.loads, self.load_step, self.unload_step = [], None, None
        self.busy = (IDLE, 0.0)
        self.engine = EngineState(status=EngineStatus.READY, n_slots=4)
        self.vocabulary = ["<s>"]
        self.form = Format(calls=GENERIC)
        self.source, self.bos, self.eos, self.infill = "", "<s>", "</s>", None
        self.turn_marks = frozenset()
        self.markers, self.end_tokens = Markers(self), frozenset()
        self.incarnation_id, self.n_ticks, self.asked = "e1", 0, []
        self.lives, self.views = [], []
        self.released = False
        self.held, self.moved, self.moves = HELD, SlotMove(0, 84, "a.bin", 5000, 0.0123), []

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in self._ANNOUNCED:
            for on_event, known in getattr(self, "apps", ()):
                self.announce(on_event, known)

    def connect(self, on_event, known):
        self.apps.append((on_event, known))
        self.announce(on_event, known)

    def on_event(self, event):
        for on_event, _ in self.apps:
            on_event(event)

    @property
    def engine_id(self):
        return self.apps[0][1].engine_id

    def announce(self, on_event, known):
        """Tell a dispatcher how it is."""
        engine_id, busy = known.engine_id, self.busy and self.busy[0]
        if not self.present and self.engine.status in {EngineStatus.RESTARTING, EngineStatus.STALLED}:
            on_event(Lost(engine_id))
            return
        known.described = False  # it is loaded elsewhere, or not at all, unless it is present
        found = Attendance("e1", 0, loaded=self.present, busy=busy, model=self.the_model)
        if self.present:
            on_event(Described(engine_id))
        on_event(Attended(engine_id, found, 0.0))

    def follow(self, one):
        pass

    @property
    def card(self):
        if isinstance(self.the_card, Exception):
            raise self.the_card
        return self.the_card

    @property
    def words(self):
        return self

    def tokenize(self, text, *, add_special=True, parse_special=True, n_most=None, is_cancelled=None):
        self.tokenized.append((text, add_special, parse_special))
        tokens = [BOS] if add_special else []
        for word in words(text):
            if word not in self.vocabulary:
                self.vocabulary.append(word)
            tokens.append(self.vocabulary.index(word))
        if n_most is not None and len(tokens) > n_most:
            raise TooManyTokensError(len(tokens), n_most)
        return tokens

    def pair(self, query, document, *, n_most=None):
        return self.tokenize(f"{query} | {document}", n_most=n_most)

    def detokenize(self, tokens, *, special=True, is_cancelled=None):
        if any(token >= len(self.vocabulary) for token in tokens):
            raise InvalidParameterError("tokens", "no such token")
        return "".join(self.vocabulary[token] for token in tokens)

    @property
    def chat(self):
        return self

    def render(self, messages, *, tools=None, **ending):
        self.tools.append(tools)
        self.messages.append(messages)
        self.endings.append(ending)
        if any(message["content"] == "refuse me" for message in messages):
            raise BadRequestError("the template refuses")
        return "".join(f"<{message['role']}> {message['content']}\n" for message in messages)

    def send(self, request):
        self.requests.append(request)
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        task = asyncio.get_running_loop().create_task(self._play(request))
        self.playing[request.request_id] = task

    def cancel(self, request_id):
        if (task := self.playing.pop(request_id, None)) is not None:
            task.cancel()
            self.n_open -= 1
            self.cancelled.append(request_id)

    def _over(self, request_id):
        if self.playing.pop(request_id, None) is not None:
            self.n_open -= 1

    def _die(self, request_id):
        """Have a request's process end; its successor is there at once."""
        self._over(request_id)
        self.on_event(Returned(self.engine_id, request_id, EngineDiedError()))
        for on_event, known in self.apps:
            self.announce(on_event, known)

    async def _turn(self, request):
        """Wait until the reader waits for this request: an engine in a test is never ahead of its client."""
        client_id = request.request_id
        if request.attempt:
            client_id = client_id.rpartition("~")[0]
        streams = [on_event.__self__._streams.get(client_id) for on_event, _ in self.apps]
        (stream,) = filter(None, streams)
        await asyncio.sleep(0)

        def is_read():
            if stream._pending:
                return all(event.request_id != client_id for event in stream._pending)
            return bool(stream._arrived._waiters)

        while not is_read():  # noqa: ASYNC110 a reader is no event
            await asyncio.sleep(0)

    async def _play(self, request):
        request_id, steps = request.request_id, iter(self.script(request))
        while True:
            await self._turn(request)
            if (step := next(steps, None)) is None:
                step = InternalError("the script has no end")
            if isinstance(step, EngineDiedError):
                self._die(request_id)
                return
            if isinstance(step, Exception):
                self._over(request_id)
                self.on_event(Returned(self.engine_id, request_id, step))
                return
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            end = next((event for event in step if isinstance(event, End)), None)
            if end is not None and not isinstance(end.error, EngineDiedError):
                self._over(request_id)
            self.on_event(EventsReceived(step, "here"))
            if end is not None:
                if isinstance(end.error, EngineDiedError):
                    self._die(request_id)
                return

    async def state(self):
        return self.engine

    async def ticks(self, *, last, since=0, before=None):
        self.asked.append((last, since, before))
        if isinstance(self.incarnation_id, Exception):
            raise self.incarnation_id
        end = self.n_ticks if before is None else before
        ids = list(range(max(since, end - last, 0), end))
        body = {"engine": {"incarnation_id": self.incarnation_id}, "next": self.n_ticks, "ticks": ids}
        body |= {"requests": lives_json(self.lives, {})}
        return TickFeed(self.incarnation_id, self.n_ticks, orjson.dumps(body))

    async def cache(self):
        if isinstance(self.held, Exception):
            raise self.held
        return self.held

    async def find(self, asked, tenant):
        self.asked.append((asked, tenant))
        return self.views

    async def move_slot(self, action, slot_id, filename):
        self.moves.append((action, slot_id, filename))
        if isinstance(self.moved, Exception):
            raise self.moved
        return self.moved

    async def release(self):
        self.released = True
        return await self.pause()

    async def pause(self):
        self.engine = replace(self.engine, paused=True)
        return self.n_open

    async def resume(self):
        self.engine = replace(self.engine, paused=False)
        return self.n_open

    async def load(self):
        self.loads.append("load")
        if isinstance(self.load_step, asyncio.Event):
            await self.load_step.wait()
        elif isinstance(self.load_step, Exception):
            raise self.load_step
        self.the_card, self.present = self.card_when_loaded, True
        self.engine = replace(self.engine, status=EngineStatus.READY)

    async def unload(self):
        self.loads.append("unload")
        if isinstance(self.unload_step, Exception):
            raise self.unload_step
        self.present = False
        self.engine = replace(self.engine, status=EngineStatus.UNLOADED)

    def observe(self, name, waited):
        self.observed.append((name, waited.value))

    def count(self, answer):
        self.answers[answer] += 1

    async def counts(self):
        return EngineMetrics(None, Presence(self.engine.engine_id, self.present, 0.0, 0))


async def settle():
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


class FakeApiClock:
    """Moves only when the test says so; whoever sleeps wakes up once it has moved so far."""

    def __init__(self):
        self.time_s, self.slept = 100.0, []
        self._sleepers = []

    def now(self):
        return self.time_s

    def unix(self):
        return 1_800_000_000

    async def sleep(self, seconds):
        self.slept.append(seconds)
        awake = asyncio.Event()
        if seconds > 0:
            self._sleepers.append((self.time_s + seconds, awake))
            await awake.wait()

    async def pass_s(self, seconds):
        await settle()  # whoever is about to sleep
        self.time_s += seconds
        for until_s, awake in self._sleepers:
            if until_s <= self.time_s:
                awake.set()
        await settle()


class Wire:
    """One HTTP request on raw ASGI: the test is the server, and may hang up."""

    def __init__(self, app, path, body=b"", *, method="POST", headers=(), chunks=None):
        path, _, query = path.partition("?")
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers],
            "client": ("127.0.0.1", 1),
            "server": ("app", 80),
        }
        self.app, self.sent = app, []
        chunks = (
            [body if isinstance(body, bytes) else json.dumps(body).encode()] if chunks is None else chunks
        )
        self.inbox = asyncio.Queue()
        for i, chunk in enumerate(chunks):
            self.inbox.put_nowait({"type": "http.request", "body": chunk, "more_body": i + 1 < len(chunks)})
        self.got_body = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def send(self, message):
        self.sent.append(message)
        if message.get("body"):
            self.got_body.set()
            await self.may_write.wait()

    def hang_up(self):
        self.inbox.put_nowait({"type": "http.disconnect"})

    async def run(self):
        await self.app(self.scope, self.inbox.get, self.send)
        return self

    def start(self):
        return asyncio.ensure_future(self.run())

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self):
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def writes(self):
        return [m["body"] for m in self.sent if m["type"] == "http.response.body" and m.get("body")]

    @property
    def body(self):
        return b"".join(self.writes)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """The data of each server-sent event, parsed; [DONE] stays a string."""
        out = []
        for event in self.body.decode().split("\n\n")[:-1]:
            assert event.startswith("data: "), event
            data = event.removeprefix("data: ")
            with suppress(json.JSONDecodeError):
                data = json.loads(data)
            out.append(data)
        return out
