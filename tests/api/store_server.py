"""A server with a store, in process: it ends and starts again, and its clock moves when a test says so."""

import asyncio
import itertools
import json

import anthropic
import httpx2
from fake_client import FakeClient, Wire, says
from openai import AsyncOpenAI
from response_rules import events_of

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.settings import ApiSettings
from cobali_ray.store.database import Store
from tests.waiting import until

CHATS = "/v1/chat/completions"


class StoreClock:
    """Time that moves when a test says so; who sleeps then wakes up, whatever the time is."""

    def __init__(self):
        self.time_s, self.unix_s = 100.0, 1_800_000_000
        self._moved = asyncio.Event()

    def now(self):
        return self.time_s

    def unix(self):
        return self.unix_s

    def advance(self, seconds):
        self.time_s += seconds
        self.unix_s += seconds
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep(self, seconds):
        until_s = self.time_s + seconds
        while self.time_s < until_s:
            await self._moved.wait()


class Server:
    """An app over a store, with clients of both APIs; it can end and start again."""

    def __init__(self, place, judges):
        self.place, self.judges = place, judges
        self.client, self.clock, self.settings = FakeClient(), StoreClock(), {}
        self.store = None

    async def start(self):
        self.store = Store(self.place)
        fleet = Fleet([ServedModel({"0": self.client})])
        self.app = build_api(
            fleet, ApiSettings(**self.settings), clock=self.clock, judges=self.judges, store=self.store
        )
        self.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        self.openai = self.openai_as("x")
        self.claude = anthropic.AsyncAnthropic(
            api_key="x", base_url="http://app", http_client=self.http, max_retries=0
        )

    def openai_as(self, key):
        return AsyncOpenAI(api_key=key, base_url="http://app/v1", http_client=self.http, max_retries=0)

    def n_rows(self, table):
        return self.store.now(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def run(self):
        self.app.state.batches.start()

    def pass_time(self, seconds):
        """Move the clock, and have the runner look: in mid-round it would sleep from the new time on."""
        self.clock.advance(seconds)
        self.app.state.batches.wake()

    async def stop(self):
        if self.store is not None:
            await self.app.state.batches.close()
            await self.http.aclose()
            self.store.close()
            self.store = None

    async def kill(self):
        """End as a process that is killed: nothing is said or written any more."""
        self.store._thread.submit(self.store._db.close).result()
        await self.stop()

    def stream(self, path, body, **more):
        """Begin to read a stream."""
        wire = Wire(self.app, path, body, **more)
        wire.task = wire.start()
        return wire

    async def later(self, path, body):
        """Ask for a response in the background, and read no further than that it is queued."""
        wire = self.stream(path, body)
        await until(lambda: b"queued" in wire.body)
        wire.hang_up()
        await wire.task
        return events_of(wire.body)[0]["response"] if body.get("stream") else wire.json

    async def wire(self, path, body=b"", method="POST", **more):
        return await Wire(self.app, path, body, method=method, **more).run()

    async def upload(self, lines, openai=None, **more):
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        files = (openai or self.openai).files
        return await files.create(file=("in.jsonl", data), purpose="batch", **more)

    async def batch(self, lines, openai=None, endpoint=CHATS, **more):
        file = await self.upload(lines, openai)
        return await (openai or self.openai).batches.create(
            input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
        )

    async def until(self, batch, *statuses, openai=None):
        """Wait until a batch is in one of these states."""

        async def there():
            found = await (openai or self.openai).batches.retrieve(batch.id)
            return found if found.status in statuses else None

        return await until(there)

    async def answered(self, batch, n):
        """Wait until so many lines have answers."""

        async def enough():
            found = await self.openai.batches.retrieve(batch.id)
            return found.request_counts.completed >= n

        await until(enough)

    async def lines(self, file_id, openai=None):
        content = await (openai or self.openai).files.content(file_id)
        return {(line := json.loads(raw))["custom_id"]: line for raw in content.text.splitlines()}


def holding(n, held=None):
    """Script: the first `n` requests are answered, the others wait for an event."""
    first = itertools.count()

    def script(request):
        if next(first) >= n:
            yield held or asyncio.Event()
        yield from says("done")(request)

    return script
