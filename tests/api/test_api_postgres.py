"""Two ingresses over one database: one answers, and the other goes on, whatever happens to the first."""

import asyncio

import pytest
from fake_client import Said, says
from response_rules import events_of
from store_server import CHATS, Server, holding

from tests.waiting import until

N_LINES = 12
PATH = "/v1/responses"


@pytest.fixture
async def servers(database, judges):
    servers = [Server(database, judges), Server(database, judges)]
    for server in servers:
        server.settings = {"sse_ping_interval": 0}  # its clock runs
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


def line(n):
    body = {"model": "fake", "messages": [{"role": "user", "content": f"text {n}"}]}
    return {"custom_id": f"r{n}", "method": "POST", "url": CHATS, "body": body}


async def answers_of(server, batch):
    """Return what each line was answered, in the end."""
    done = await server.until(batch, "completed")
    assert done.request_counts.completed == N_LINES
    content = await server.openai.files.content(done.output_file_id)
    assert len(content.text.splitlines()) == N_LINES, "each once"
    found = await server.lines(done.output_file_id)
    return {one: line["response"]["body"]["choices"][0]["message"]["content"] for one, line in found.items()}


async def in_time(holds, *servers):
    """Wait until something holds while time goes on for these."""

    async def a_second_later():
        for server in servers:
            server.clock.advance(1.0)
        await asyncio.sleep(0)
        return holds()

    await until(a_second_later)


@pytest.mark.parametrize("ends", ["killed", "cut off"])
async def test_the_other_goes_on_with_a_batch(servers, postgres, database, ends):
    first, second = servers
    first.client.script, second.client.script = holding(4), says("second")
    first.run()
    await until(lambda: first.store.holds_lock)
    second.run()
    batch = await first.batch([line(n) for n in range(N_LINES)])
    await first.answered(batch, 4)
    await until(lambda: first.client.n_open > 0)
    assert (second.client.requests, second.store.holds_lock) == ([], False), "only one of them answers"
    if ends == "killed":
        await first.kill()
        await in_time(lambda: second.store.holds_lock, second)
    else:
        postgres.cut(database)
        await in_time(lambda: second.store.holds_lock, second)
        await in_time(lambda: not first.client.n_open, first)
    answers = await answers_of(second, batch)
    assert list(answers.values()).count("second") == N_LINES - 4
    assert len(second.client.requests) == N_LINES - 4, "none is asked twice that was answered"


async def test_the_other_goes_on_with_a_response_and_nobody_writes_between(servers, postgres, database):
    first, second = servers
    first.client.script, second.client.script = begins, goes_on = Said(), Said()
    first.run()
    await until(lambda: first.store.holds_lock)
    second.run()
    live = second.stream(PATH, {"input": "hi", "background": True, "stream": True})
    await in_time(lambda: first.client.requests, first)
    begins.say("one ", "two ")
    await in_time(lambda: b"two " in live.body, second)
    postgres.cut(database)
    await in_time(lambda: second.store.holds_lock, second)
    begins.say("wrong ")
    await in_time(lambda: second.client.requests, first, second)
    assert second.client.requests[0].sent_tokens == (1, 1)
    goes_on.say("three", None)
    await in_time(lambda: b"response.completed" in live.body, first, second)
    await live.task
    events = events_of(live.body)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    assert text == events[-1]["response"]["output"][0]["content"][0]["text"] == "one two three"


async def test_without_its_database_a_server_answers_what_needs_none(servers, postgres):
    server, _ = servers
    postgres.stop()
    try:
        wire = await server.wire("/v1/batches", method="GET")
        error = wire.json["error"]
        assert (wire.status, error["code"]) == (503, "store_failed")
        assert error["message"].endswith("its database cannot be reached (setting data_url)")
        wire = await server.wire(PATH, {"input": "hi"})
        assert (wire.status, wire.json["status"], wire.json["store"]) == (200, "completed", False)
    finally:
        postgres.start()
