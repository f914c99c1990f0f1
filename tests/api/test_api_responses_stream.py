"""Responses as a stream: whatever the model writes, and however it is cut, the events keep the rules."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from response_rules import Checked, events_of

from cobali_ray.api.call.prompt import Speech
from cobali_ray.api.call.translate import Call
from cobali_ray.api.reply.tally import StreamWriter, Tally
from cobali_ray.api.responses.frames import ResponseWriter
from cobali_ray.api.responses.read import ResponseTemplate
from cobali_ray.api.responses.tools import Callee
from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.core.request.events import Delta, End, RequestStats, TokenLogprob
from cobali_ray.core.request.request import Request

THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in ("look", "mcp__fs__read", "patch"))
CALLEES = {
    "look": Callee("function", "look"),
    "mcp__fs__read": Callee("function", "read", "mcp__fs"),
    "patch": Callee("custom", "patch"),
}
CALL = Call(
    call_id="resp_abc",
    created=7,
    model="m",
    fingerprint="fp_1",
    requests=(Request(request_id="0", prompt=(1, 2), max_tokens=1),),
    n=1,
    echoes=("",),
    stream=True,
    include_usage=False,
    with_logprobs=False,
    speech=Speech(THINKS, "", TOOLS),
)
LOOK = '<tool_call>\n{"name": "look", "arguments": {"at": "\\u00e9 \\"x\\""}}\n</tool_call>'
READ = '<tool_call>\n{"name": "mcp__fs__read", "arguments": {}}\n</tool_call>'
PATCH = (
    '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+a \\ud83d\\ude00"}}\n</tool_call>'
)
BROKEN = '<tool_call>\n{"name": "look", "arguments": {"at": oops}}\n</tool_call>'
UNKNOWN = '<tool_call>\n{"name": "look", "arg'
PIECES = (LOOK, READ, PATCH, BROKEN, UNKNOWN, "Hello! ", "\n", " ", "é😀", "<", "<tool_", "</think>", "{}")
TEXTS = st.builds(
    lambda thought, pieces: "".join([f"<think>\n{thought}\n</think>\n\n" if thought else "", *pieces]),
    st.sampled_from(["", "hm", "a <tool_call> b"]),
    st.lists(st.sampled_from(PIECES), max_size=6),
)


def end_of(n_output, reason):
    return End("0", reason, None, RequestStats(2, 1, n_output, 0.1, 0.2, 0.3, 0.5, 1.0))


def told(batches, call=CALL):
    """Return the stream's events and the answer in one piece."""
    written = ResponseTemplate({"store": False}, CALLEES)
    frames, tally = ResponseWriter(written, call), Tally(call)
    writer = StreamWriter(call, frames, tally)
    answer, whole = ResponseWriter(written, call), Tally(call)
    wire = b""
    for batch in batches:
        wire += writer.write(batch, 0.5)
        for news in whole.sort(batch, 0.5):
            answer.add(news)
    stream, body = Checked(events_of(wire)), orjson.loads(orjson.dumps(answer.body(whole.times(0.5))))
    for timings in (stream.response["timings"], body["timings"]):
        for name in ("itl_p50_s", "itl_p99_s", "itl_max_s"):  # of batches, which these tests vary
            timings.pop(name)
    return stream, body


def cut(text, places):
    """Return a text in pieces."""
    inner = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *inner], [*inner, len(text)], strict=True)]


def batched(events, sizes):
    """Return events in batches."""
    events, batches = list(events), []
    for size in sizes:
        batches.append(events[:size])
        events = events[size:]
    return [*filter(None, batches), events]


PLACES = st.lists(st.integers(0, 400), max_size=8)
SIZES = st.lists(st.integers(0, 9), max_size=30)
REASONS = st.sampled_from(["stop", "length"])


@given(TEXTS, PLACES, SIZES, REASONS)
@example(f"Hello{LOOK}{PATCH}", [3, 9], [1, 1], "stop")
@example(BROKEN, [30], [1], "stop")
@example(LOOK[:30], [], [1], "length")
@example(PATCH[:60], [], [1], "length")
@example("", [], [], "stop")
@example("<think>\nhm\n</think>\n\n", [], [], "stop")
def test_however_an_answer_is_cut_the_stream_keeps_the_rules_and_ends_the_same(text, places, sizes, reason):
    deltas = [Delta("0", piece, ()) for piece in cut(text, places)]
    end = end_of(9, reason)
    stream, _ = told(batched([*deltas, end], sizes))
    other, whole = told([[Delta("0", text, ()), end]])
    assert stream.response == other.response
    assert stream.response["status"] == ("completed" if reason == "stop" else "incomplete")
    # In one piece, calls that turned out to be none do not stand before the text that they are.
    items = stream.response["output"]
    missing = [item for item in items if item not in whole["output"]]
    assert whole == stream.response | {"output": [item for item in items if item not in missing]}
    assert all((item["status"], item["type"][-5:]) == ("incomplete", "_call") for item in missing)


@given(TEXTS, SIZES, REASONS)
def test_however_tokens_come_in_batches_their_logprobs_and_counts_are_the_same(text, sizes, reason):
    deltas = [Delta("0", char, (1,), (TokenLogprob(1, char.encode(), -0.5, ()),)) for char in text]
    call = replace(CALL, with_logprobs=True)
    end = end_of(len(deltas), reason)
    one, whole = told(batched([*deltas, end], sizes), call)
    other, _ = told([[*deltas, end]], call)
    assert one.response == other.response
    assert one.response["usage"] == whole["usage"]
    parts = [item["content"][0] for item in one.response["output"] if item["type"] == "message"]
    said = "".join(logprob["token"] for part in parts for logprob in part["logprobs"])
    rest = iter(said)
    assert all(char in rest for part in parts for char in part["text"]), "none is missing"
    assert "<think>" not in said


@pytest.mark.parametrize("speech", [CALL.speech, None], ids=["taken-apart", "plain"])
def test_logprobs_are_those_of_the_text_and_of_nothing_else(speech):
    texts = ["<think>", "hm", "</think>", "Hi", " you", "\n", "<tool", f"{LOOK[5:]}"]
    if speech is None:
        texts = ["Hi", " you"]
    deltas = [Delta("0", text, (1,), (TokenLogprob(1, text.encode(), -0.5, ()),)) for text in texts]
    call = replace(CALL, with_logprobs=True, speech=speech)
    stream, _ = told([deltas, [end_of(len(deltas), "stop")]], call)
    (message,) = [item for item in stream.response["output"] if item["type"] == "message"]
    assert [one["token"] for one in message["content"][0]["logprobs"]] == ["Hi", " you"]


def test_calls_are_told_by_the_names_that_the_client_gave():
    stream, _ = told([[Delta("0", READ + PATCH, ()), end_of(3, "stop")]])
    read, patch = stream.response["output"]
    assert (read["type"], read["name"], read["namespace"]) == ("function_call", "read", "mcp__fs")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** Begin\n+a 😀")
    assert "namespace" not in patch


def test_a_call_is_done_when_its_arguments_are():
    stream, _ = told([[Delta("0", LOOK, ())], [end_of(3, "length")]])
    assert [item["status"] for item in stream.response["output"]] == ["completed"]


def test_a_call_that_was_cut_is_incomplete():
    stream, whole = told([[Delta("0", PATCH[:68], ()), end_of(3, "length")]])
    (item,) = stream.response["output"]
    assert (item["status"], item["input"]) == ("incomplete", "*** Begin\n+a ")
    assert stream.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"] == [item]


def test_a_call_that_broke_is_followed_by_what_it_was():
    stream, whole = told([[Delta("0", text, ())] for text in cut(BROKEN, [40])] + [[end_of(3, "stop")]])
    call, message = stream.response["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert message["content"][0]["text"] == BROKEN
    assert whole["output"] == [message]
