"""A Puller that keeps what it tells."""

import asyncio
from collections import defaultdict

from cobali_ray.actors.wire import Puller
from cobali_ray.core.dispatch.messages import EventsReceived, Unheard, Unreadable


class Ear(Puller):
    """Keeps what is said of each request, which cannot be read, and who is not heard any more."""

    def __init__(self, **place):
        self.inboxes, self.unreadable, self.unheard = defaultdict(Inbox), [], []
        super().__init__("0", self._note, **place)

    async def read(self, request_id, n):
        """Wait for so many events of a request."""
        return await self.inboxes[request_id].read(n)

    async def texts(self, request_id, n):
        return [event.text for event in await self.read(request_id, n)]

    def _note(self, event):
        match event:
            case EventsReceived(words, source):
                for word in words:
                    self.inboxes[word.request_id].put(word, source)
            case Unreadable(request_ids):
                self.unreadable += request_ids
            case Unheard(_, sources):
                self.unheard.append(sources)


class Inbox:
    """What was said of one request, and by which way."""

    def __init__(self):
        self.source, self._words, self._news = "", [], asyncio.Event()

    def put(self, word, source):
        self.source = source
        self._words.append(word)
        self._news.set()

    async def read(self, n):
        events = []
        async with asyncio.timeout(60):
            while len(events) < n:
                await self._news.wait()
                events += self.take()
        return events

    def take(self):
        self._news.clear()
        taken, self._words = self._words, []
        return taken
