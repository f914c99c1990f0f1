"""The whole way of a request is what its client waits for: body, template and tokeniser are part of it."""

import asyncio

import pytest
from fake_client import CARD, CHAT, Wire
from structlog.testing import capture_logs

from cobali_ray.errors import QueueFullError
from tests.waiting import until

ASK = {"model": CARD.model_id, "messages": [{"role": "user", "content": "say hello"}]}


@pytest.fixture
def slow(client, clock):
    """Let the tokeniser take 2 s, the first text 0.5 s and the rest 1 s."""
    tokenize, script = client.tokenize, client.script

    def slowly(text, **how):
        clock.time_s += 2.0
        return tokenize(text, **how)

    def speak(request):
        for step, lasts_s in zip(script(request), (0.5, 0.25, 0.25, 0.5), strict=True):
            clock.time_s += lasts_s
            yield step

    client.tokenize, client.script = slowly, speak
    return client


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_slow_tokeniser_is_in_ttft_and_e2e_and_not_in_the_engines_part(post, slow, stream):
    with capture_logs() as logs:
        wire = await post(CHAT, ASK | {"stream": stream})
    told = (wire.events[-2] if stream else wire.json)["timings"]
    assert (told["ttft_s"], told["e2e_s"]) == (2.5, 3.5)
    assert (told["queue_s"], told["prefill_s"]) == (0.01, 0.09), "these are the engine's"
    assert (told["itl_p50_s"], told["itl_p99_s"], told["itl_max_s"]) == (0.25, 0.25, 0.25)
    assert slow.observed == [("ttft_seconds", 2.5), ("e2e_seconds", 3.5)]
    assert slow.requests[0].received_s == 100.0, "from which the engine knows what came before it"
    (line,) = logs
    assert (line["ttft_s"], line["e2e_s"], line["queue_s"]) == (2.5, 3.5, 0.01)


async def test_several_answers_are_one_request(post, client):
    await post(CHAT, ASK | {"n": 3, "stream": True})
    assert [name for name, _ in client.observed] == ["ttft_seconds", "e2e_seconds"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_each_of_several_answers_has_times_of_its_own(post, slow, stream):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    wire = await post(CHAT, ASK | {"n": 2, "stream": stream} | options)
    told = wire.events[-2] if stream else wire.json
    choices = told["timings"]["choices"]
    assert sum(one["completion_tokens"] for one in choices) == told["usage"]["completion_tokens"] == 6
    assert min(one["ttft_s"] for one in choices) == told["timings"]["ttft_s"]
    assert max(one["e2e_s"] for one in choices) == told["timings"]["e2e_s"]
    assert all(one["itl_max_s"] > 0 for one in choices)


async def test_a_client_that_leaves_has_a_first_text_but_no_end(app, client, said):
    said.say("Hello")
    wire = Wire(app, CHAT, ASK | {"stream": True})
    running = asyncio.ensure_future(wire.run())
    await until(lambda: client.observed)
    wire.hang_up()
    await running
    assert [name for name, _ in client.observed] == ["ttft_seconds"]


async def test_a_refusal_counts_nothing(post, client):
    client.script = lambda _: [QueueFullError("requests", 1, 1.0)]
    assert (await post(CHAT, ASK)).status == 429
    assert client.observed == []
