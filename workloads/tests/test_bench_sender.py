"""The sender: loops on a clock that the test drives, and the client against a small server on loopback."""

import asyncio
import heapq
import itertools

import orjson
import pytest

from cobali_workloads.load.reply import Exchange, read_reply, timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender, closed_loop, open_loop, with_intruder
from cobali_workloads.load.target import Job, Target

WAIT_S = 60


class VirtualTimer:
    """Time goes on only when everything waits for it, straight to the next moment wanted."""

    def __init__(self):
        self._now, self._wanted, self._ids = 0.0, [], itertools.count()

    def now(self):
        return self._now

    async def until(self, at_s):
        if at_s > self._now:
            woken = asyncio.get_running_loop().create_future()
            heapq.heappush(self._wanted, (at_s, next(self._ids), woken))
            await woken

    async def drive(self, work):
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._wanted and not task.done():
                self._now, _, woken = heapq.heappop(self._wanted)
                if not woken.done():
                    woken.set_result(None)
        return task.result()


class FakeServer:
    """Answers each job after `takes_s(job)`; keeps what was asked and how many ran at once."""

    def __init__(self, timer, takes_s):
        self._timer, self._takes_s, self.running = timer, takes_s, 0
        self.jobs, self.most, self.sent = [], 0, []

    async def __call__(self, job, due_s):
        sent = self._timer.now()
        self.jobs.append(job)
        self.sent.append(sent)
        self.running += 1
        self.most = max(self.most, self.running)
        await self._timer.until(sent + self._takes_s(job))
        self.running -= 1
        now = self._timer.now()
        said = orjson.dumps({"choices": [{"text": f"re {job.prompt}", "finish_reason": "stop"}]})
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        pieces = [(now, head + b"data: " + said + b"\n\n")]
        return Exchange(due_s=due_s, sent_s=sent, closed_s=now, pieces=pieces, role=job.role)


def drive(timer, work):
    async def main():
        return await timer.drive(work)

    return asyncio.run(main())


def job(prompt="p", **values):
    return Job(prompt=prompt, n_output=4, **values)


def test_closed_loop_clients_wait_for_their_answer():
    timer = VirtualTimer()
    server = FakeServer(timer, lambda j: float(j.prompt))
    done = drive(timer, closed_loop(server, [[job("1"), job("1"), job("1")], [job("2"), job("2")]], timer))
    assert server.most == 2
    assert sorted(server.sent) == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert max(e.closed_s for e in done) == 4.0
    assert all(e.due_s == e.sent_s for e in done)


def test_open_loop_sends_on_time_whatever_comes_back():
    timer = VirtualTimer()
    server = FakeServer(timer, lambda _: 100.0)
    done = drive(timer, open_loop(server, [job(at_s=0.5), job(at_s=0.75), job(at_s=3.0)], timer))
    assert server.sent == [0.5, 0.75, 3.0]
    assert server.most == 3
    assert [e.due_s for e in done] == [0.5, 0.75, 3.0]


def test_a_later_turn_carries_what_was_said_and_heard():
    timer = VirtualTimer()
    server = FakeServer(timer, lambda _: 1.0)
    turns = [job("a"), job("b", begins=False), job("c", begins=False), job("d")]
    drive(timer, closed_loop(server, [turns], timer))
    assert [j.history for j in server.jobs] == [(), (("a", "re a"),), (("a", "re a"), ("b", "re b")), ()]


def test_intruders_come_for_as_long_as_the_load_lasts():
    timer = VirtualTimer()
    server = FakeServer(timer, lambda j: 1.5 if j.role == "stream" else 0.25)
    streams = closed_loop(server, [[job(), job(), job()]], timer)
    intruders = (job("x", at_s=2.0 * i, role="intruder") for i in itertools.count(1))
    done = drive(timer, with_intruder(streams, server, intruders, timer))
    assert [e.sent_s for e in done if e.role == "intruder"] == [2.0, 4.0]
    assert sum(e.role == "stream" for e in done) == 3


def test_an_intruder_under_way_is_waited_for():
    timer = VirtualTimer()
    server = FakeServer(timer, lambda j: 3.0 if j.role == "stream" else 9.0)
    done = drive(timer, with_intruder(
        closed_loop(server, [[job()]], timer), server, iter([job(at_s=2.0, role="intruder")]), timer
    ))  # fmt: skip
    assert [e.closed_s for e in done if e.role == "intruder"] == [11.0]


# -- over a socket --------------------------------------------------------------------------------


def target_at(port, **values):
    return Target(**{
        "name": "t", "url": f"http://127.0.0.1:{port}", "host": "127.0.0.1", "port": port,
        "address": "127.0.0.1", "tls": False, "model": "m", **values,
    })  # fmt: skip


async def exchange_with(blocks, *, keep_open=False, timeout_s=WAIT_S, **values):
    """Send one job to a server that answers with these blocks; return the exchange and what it read."""
    asked, release = [], asyncio.Event()

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")
        )
        asked.append((head, orjson.loads(await reader.readexactly(length))))
        for block in blocks:
            writer.write(block)
            await writer.drain()
        if keep_open:
            await release.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        target = target_at(server.sockets[0].getsockname()[1], **values)
        send = Sender(target, LoopTimer(), ignore_eos=True, timeout_s=timeout_s)
        async with asyncio.timeout(WAIT_S):
            found = await send(Job(prompt="Hi", n_output=3), 0.0)
        release.set()
    return found, asked[0] if asked else None


EVENTS = [
    b'data: {"choices":[{"text":"a"}]}\n\n',
    b'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
]
CHUNKED = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    *(b"%x\r\n%s\r\n" % (len(e), e) for e in EVENTS),
    b"0\r\n\r\n",
]
BODY = b'{"error": {"message": "full"}}'
REFUSAL = [
    b"HTTP/1.1 429 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
]


@pytest.mark.parametrize(("blocks", "keep_open", "status"), [
    pytest.param(CHUNKED, True, "ok", id="chunked-kept-open"),
    pytest.param(CHUNKED, False, "ok", id="chunked-closed"),
    pytest.param([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", *EVENTS], False, "ok",
                 id="until-close"),
    pytest.param(REFUSAL, True, "refused", id="content-length-kept-open"),
    pytest.param(CHUNKED[:2], False, "failed", id="broke-off"),
])  # fmt: skip
def test_an_answer_ends_where_the_server_says(blocks, keep_open, status):
    found, _ = asyncio.run(exchange_with(blocks, keep_open=keep_open))
    timeline = timeline_of(found)
    assert timeline.status == status
    assert found.sent_s <= timeline.ended_s <= found.closed_s
    if status == "ok":
        assert read_reply(found.pieces).text == "ab"
        assert (timeline.n_prompt, timeline.n_output) == (1, 2)


def test_what_a_completions_request_says():
    _, (head, body) = asyncio.run(exchange_with(CHUNKED, api_key="k"))
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in head
    assert body == {
        "model": "m", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "prompt": "Hi",
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_what_a_chat_request_says():
    target = target_at(1, endpoint="chat")
    raw = target.request(job("c", history=(("a", "b"),)), ignore_eos=False, stream=False)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions ")
    assert orjson.loads(body) == {
        "model": "m", "max_tokens": 4, "temperature": 0,
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                     {"role": "user", "content": "c"}],
    }  # fmt: skip


def test_a_silent_server_is_a_failure_after_the_timeout():
    found, _ = asyncio.run(exchange_with([], keep_open=True, timeout_s=0.05))
    assert timeline_of(found).status == "failed"
    assert "0.05 s" in found.error


def test_nobody_there_is_a_failure():
    async def main():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await Sender(target_at(port), LoopTimer(), ignore_eos=True, timeout_s=WAIT_S)(job(), 0.0)

    found = asyncio.run(main())
    assert timeline_of(found).status == "failed"
    assert found.error.startswith("connection")
