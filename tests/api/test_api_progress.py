"""Streams that say how much of the prompt is computed, and where in the queue it is."""

import orjson
import pytest
from fake_client import Wire, says, stats

from cobali_ray.core.request.events import Delta, End, RequestProgress

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True})
TEXT = {"prompt": "hi", "stream": True}
PATHS = [
    pytest.param(*CHAT, id="chat"),
    pytest.param("/chat/completions", CHAT[1], id="llama-server-chat"),
    pytest.param("/v1/completions", TEXT, id="completions"),
    pytest.param("/completion", TEXT, id="llama-server"),
]
QUEUE = {"queue_progress": {"n_ahead": 2, "wait_s": 1.5}}
PROMPT = [
    {"prompt_progress": {"total": 100, "cache": 10, "processed": n, "time_ms": ms}}
    for n, ms in ((60, 250.0), (100, 500.0))
]


def script(request):
    """An engine tells of those who asked."""
    name = request.request_id
    if request.progress:
        yield [RequestProgress(name, 0, 0, 100, 0.0, 2, 1.5)]
        yield [RequestProgress(name, 60, 10, 100, 0.25, None, None)]
        yield [RequestProgress(name, 100, 10, 100, 0.5, None, None), Delta(name, "Hello", (1,))]
    else:
        yield [Delta(name, "Hello", (1,))]
    yield [End(name, "stop", None, stats(request, 1))]


@pytest.fixture(autouse=True)
def engine(client):
    client.script = script


def reports(wire):
    """Return what was said of progress, in its order, and every other event."""
    named = {"prompt_progress", "queue_progress"}
    events = [e for e in wire.events if isinstance(e, dict)]
    said = [{name: e[name] for name in named & e.keys()} for e in events if named & e.keys()]
    return said, [e for e in events if not named & e.keys()]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, []),
        ({"return_progress": False, "return_queue_progress": False}, []),
        ({"return_progress": True}, PROMPT),
        ({"return_queue_progress": True}, [QUEUE]),
        ({"return_progress": True, "return_queue_progress": True}, [QUEUE, *PROMPT]),
    ],
)
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_who_asks_is_told_and_the_answer_is_the_same(path, body, asked, expected, app, client):
    wire = await Wire(app, path, body | asked).run()
    assert "x-cobali-ignored-fields" not in wire.headers
    said, others = reports(wire)
    assert said == expected
    assert client.requests[0].progress == bool(expected), "the engine hears of it only then"
    plain = await Wire(app, path, body).run()
    assert len(others) == len(reports(plain)[1])
    assert b"Hello" in wire.body


async def test_a_chunk_with_progress_is_a_chunk_like_others(app):
    chat = await Wire(app, CHAT[0], CHAT[1] | {"return_progress": True}).run()
    first = chat.events[0]
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    text = await Wire(app, "/v1/completions", TEXT | {"return_progress": True}).run()
    assert text.events[0]["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": None}]
    native = await Wire(app, "/completion", TEXT | {"return_progress": True}).run()
    assert (native.events[0]["content"], native.events[0]["stop"]) == ("", False)


async def test_choices_are_told_apart(app):
    body = {"prompt": ["a", "b"], "stream": True, "return_progress": True}
    wire = await Wire(app, "/v1/completions", body).run()
    indices = [e["choices"][0]["index"] for e in wire.events[:-1] if "prompt_progress" in e]
    assert sorted(indices) == [0, 0, 1, 1]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("asked", [{}, {"return_progress": True}, {"return_queue_progress": True}])
async def test_timings_have_what_was_predicted_and_the_whole_prompt(path, body, asked, stream, app, client):
    wire = await Wire(app, path, body | {"stream": stream} | asked).run()
    last = next(e for e in reversed(wire.events) if isinstance(e, dict)) if stream else wire.json
    n_prompt = client.requests[0].n_prompt
    whole = {"total": n_prompt, "cache": 1, "processed": n_prompt, "time_ms": 90.0}
    expected = {"prompt_progress": whole} if asked.get("return_progress") else QUEUE if asked else {}
    assert {name: told for name, told in last["timings"].items() if "progress" in name} == expected


async def test_who_did_not_wait_has_no_place(app, client):
    client.script = says("Hello")
    wire = await Wire(app, CHAT[0], CHAT[1] | {"stream": False, "return_queue_progress": True}).run()
    assert wire.json["timings"]["queue_progress"] is None


async def test_progress_is_no_token(app, client):
    """What is measured of a stream begins with its text."""
    body = CHAT[1] | {"return_progress": True, "stream_options": {"include_usage": True}}
    wire = await Wire(app, CHAT[0], body).run()
    last = next(e for e in reversed(wire.events) if isinstance(e, dict))
    assert last["usage"]["completion_tokens"] == 1
    assert sum(name == "ttft_seconds" for name, _ in client.observed) == 1


ASKS = [("x-cobali-progress", "true")]
SAY = [{"role": "user", "content": "hi"}]
MESSAGES = ("/v1/messages", {"model": "fake", "max_tokens": 9, "messages": SAY, "stream": True})
RESPONSES = ("/v1/responses", {"input": "hi", "stream": True})
OLLAMA = [
    ("/api/chat", {"model": "fake", "messages": SAY}),
    ("/api/generate", {"model": "fake", "prompt": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), [CHAT, ("/v1/completions", TEXT), ("/completion", TEXT)])
async def test_a_header_asks_for_both_in_every_api(path, body, app):
    said, _ = reports(await Wire(app, path, body, headers=ASKS).run())
    assert said == [QUEUE, *PROMPT]


async def test_messages_say_it_in_their_pings(app):
    wire = await Wire(app, *MESSAGES, headers=ASKS).run()
    told = [orjson.loads(line[6:]) for line in wire.body.splitlines() if line.startswith(b"data: ")]
    assert told[:3] == [{"type": "ping"} | one for one in (QUEUE, *PROMPT)]
    assert told[3]["type"] == "message_start"
    assert told[-1]["type"] == "message_stop"
    assert b"ping" not in (await Wire(app, *MESSAGES).run()).body


async def test_responses_say_it_in_events_of_their_own_names_and_numbers(app):
    wire = await Wire(app, *RESPONSES, headers=ASKS).run()
    told = [orjson.loads(line[6:]) for line in wire.body.splitlines() if line.startswith(b"data: ")]
    first = [event["type"] for event in told[:6]]
    prompt = ["response.in_progress"] * 2
    assert first == [
        "response.created", "response.in_progress", "response.queued", *prompt, "response.output_item.added",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[2]["response"]["status"] == "queued"
    found = [told[i]["response"] for i in (2, 3, 4)]
    assert [one | told for one, told in zip(found, (QUEUE, *PROMPT), strict=True)] == found
    assert told[-1]["type"] == "response.completed"
    assert told[-1]["response"]["timings"]["queue_progress"] == QUEUE["queue_progress"]
    plain = await Wire(app, *RESPONSES).run()
    assert plain.body.count(b"event: response.created") == 1
    assert b"_progress" not in plain.body.replace(b"in_progress", b"")


@pytest.mark.parametrize(("path", "body"), OLLAMA)
async def test_ollama_says_it_in_lines_without_text(path, body, app):
    wire = await Wire(app, path, body, headers=ASKS).run()
    lines = [orjson.loads(line) for line in wire.body.splitlines()]
    for line, told in zip(lines, (QUEUE, *PROMPT), strict=False):
        assert line | told == line
        assert line["done"] is False
        assert line.get("response", line.get("message", {}).get("content")) == ""
    assert len(lines) == 3 + len((await Wire(app, path, body).run()).body.splitlines())


async def test_the_header_is_true_or_false(app):
    wire = await Wire(app, *CHAT, headers=[("x-cobali-progress", "yes")]).run()
    assert wire.status == 400
    assert b"x-cobali-progress" in wire.body
