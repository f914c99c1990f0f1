"""Raw answers of several servers, cut anywhere, read into deltas with their arrival."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_workloads.load.reply import Exchange, read_reply, timeline_of

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5,
                                   "prompt_tokens_details": {"cached_tokens": 6}}}  # fmt: skip


def event(content, end=b"\n\n"):
    return b"data: " + orjson.dumps(content) + end


def chat(content, finish=None):
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}], "usage": None}


def text(content, finish=None):
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


def chunked(*parts):
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]


def at_once(*blocks):
    return [(float(i), block) for i, block in enumerate(blocks)]


OURS = [
    event(chat({"role": "assistant", "content": ""})),
    event(chat({"content": "Hel"})),
    event(chat({"content": "lo"})) + event(chat({"content": "!"})),
    event(chat({}, "length")) + event(USAGE) + b"data: [DONE]\n\n",
]


def test_chat_with_a_role_chunk_and_merged_events():
    head = SSE + b"Transfer-Encoding: chunked\r\n\r\n"
    reply = read_reply(at_once(head, *chunked(*OURS)))
    assert reply.deltas == [(2.0, "Hel"), (3.0, "lo"), (3.0, "!")]
    assert (reply.text, reply.n_prompt, reply.n_output, reply.finished) == ("Hello!", 9, 5, True)
    assert reply.n_cached == 6
    assert reply.error == ""


@pytest.mark.parametrize("events", [
    pytest.param([event(text("a")), event(text("b", "stop")), b"data: [DONE]\n\n"], id="completions"),
    pytest.param([event(text("a"), b"\r\n\r\n"), event(text("b", "stop"), b"\r\n\r\n")], id="crlf"),
    pytest.param([event(text("a")).replace(b"data: ", b"data:"), event(text("b", "stop"))], id="no-space"),
    pytest.param([b": a note\n\n", b"event: x\n" + event(text("a")), event(text("b", "stop"))], id="comment"),
    pytest.param([event(chat({"reasoning_content": "a", "content": None})),
                  event(chat({"content": "b"}, "stop"))], id="reasoning"),
    pytest.param([event(chat({"content": "a"})), event(chat({"content": "b"})), b"data: [DONE]\n\n"],
                 id="done-without-reason"),
])  # fmt: skip
def test_dialects(events):
    reply = read_reply([(0.0, SSE + b"\r\n"), *((1.0 + i, e) for i, e in enumerate(events))])
    assert (reply.text, reply.error, reply.n_output) == ("ab", "", None)
    assert [at for at, _ in reply.deltas] == [
        1.0 + i for i, e in enumerate(events) if b'"a"' in e or b'"b"' in e
    ]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_wherever_the_bytes_are_cut_the_answer_is_the_same(cuts):
    raw = SSE + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunked(*OURS))
    pieces, start = [], 0
    for number, length in enumerate(cuts):
        pieces.append((float(number), raw[start : start + length]))
        start += length
    pieces.append((float(len(cuts)), raw[start:]))
    reply = read_reply([p for p in pieces if p[1]])
    assert reply.text == "Hello!"


def test_a_delta_comes_with_its_last_byte():
    raw = SSE + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunked(*OURS))
    line_end = raw.index(b"\n", raw.index(b'"Hel"'))
    for cut in range(1, len(raw)):
        reply = read_reply([(1.0, raw[:cut]), (2.0, raw[cut:])])
        assert reply.deltas[0] == (1.0 if cut >= line_end else 2.0, "Hel")


def answer(status, body, kind=b"application/json"):
    head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
    return [(3.0, head + body)]


WHOLE = orjson.dumps(
    {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}
)
BROKEN = [(0.0, SSE + b"\r\n" + event(chat({"content": "a"})))]


@pytest.mark.parametrize(("pieces", "status", "says"), [
    pytest.param(answer(200, WHOLE), "ok", "", id="whole"),
    pytest.param(answer(429, b'{"error": {"message": "full"}}'), "refused", "full", id="queue-full"),
    pytest.param(answer(503, b"loading"), "refused", "503", id="loading"),
    pytest.param(answer(400, b'{"error": {"message": "too long"}}'), "failed", "too long", id="bad-request"),
    pytest.param(answer(500, b"<html>"), "failed", "500", id="no-json"),
    pytest.param(answer(200, b"<html>"), "failed", "no JSON", id="html"),
    pytest.param(BROKEN, "failed", "broke off", id="stream-broke-off"),
    pytest.param([(0.0, SSE + b"\r\n" + event({"error": {"message": "died"}}))], "failed", "died",
                 id="error-event"),
    pytest.param([(0.0, SSE)], "failed", "head", id="half-a-head"),
    pytest.param([(0.0, b"SSH-2.0-x\r\n")], "failed", "no HTTP", id="not-http"),
    pytest.param([], "failed", "no HTTP", id="nothing"),
])  # fmt: skip
def test_what_became_of_it(pieces, status, says):
    found = timeline_of(Exchange(due_s=0.0, sent_s=1.0, closed_s=9.0, pieces=pieces))
    assert found.status == status
    assert says in found.error
    assert found.ended_s == (pieces[-1][0] if pieces else 9.0)


def test_without_usage_deltas_are_counted_and_it_is_said():
    done = [*BROKEN, (1.0, event(chat({"content": "b"}, "stop")))]
    found = timeline_of(Exchange(due_s=0.0, sent_s=0.0, closed_s=2.0, pieces=done))
    assert (found.n_output, found.counted) == (2, True)
    whole = timeline_of(Exchange(due_s=0.0, sent_s=0.0, closed_s=2.0, pieces=answer(200, WHOLE)))
    assert (whole.n_output, whole.counted, whole.ttft_s) == (3, False, None)


def test_a_failed_connection_fails_even_a_half_answer():
    found = timeline_of(Exchange(due_s=0, sent_s=0, closed_s=2, pieces=answer(200, WHOLE), error="reset"))
    assert (found.status, found.error) == ("failed", "reset")
