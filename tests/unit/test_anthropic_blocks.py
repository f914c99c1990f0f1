"""Anthropic's blocks: events in order, and the same message however the answer was cut."""

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cobali_ray.api.anthropic.answer import MessageWriter, input_of
from cobali_ray.api.call.prompt import Speech
from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.reply.tally import StreamWriter, Tally
from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.core.request.events import Delta, End, RequestStats
from cobali_ray.core.request.request import Request

FORM = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in ("get_weather", "now"))
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź", "n": [1, 2.50]}}\n</tool_call>'
NOW = '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BROKEN = (THOUGHT + CALL[:60],)
ANSWERS = [
    "",
    "Hello 😀",
    THOUGHT + "It is noon.",
    THOUGHT + CALL,
    "One moment.\n" + CALL + NOW,
    THOUGHT + "Well:\n" + CALL + "\nand that was it.",
    *BROKEN,
    THOUGHT[:12],
    "<tool_call>\nno call at all</tool_call>",
]
KINDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


def call(speech=True):
    return Call(
        call_id="msg_1",
        created=7,
        model="m",
        fingerprint="fp",
        requests=(Request(request_id="0", prompt=(1,) * 10, max_tokens=9),),
        n=1,
        echoes=("",),
        stream=True,
        include_usage=False,
        with_logprobs=False,
        speech=Speech(FORM, "", TOOLS) if speech else None,
    )


def batches_of(text, cuts, end):
    places = sorted({min(cut, len(text)) for cut, _ in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    stats = end.stats._replace(n_output=0)
    deltas = [Delta("0", piece, (1,), (), None if i else stats) for i, piece in enumerate(pieces) if piece]
    batch = []
    for event, (_, ends) in zip([*deltas, end], [*cuts, (0, True)] * (len(deltas) + 1), strict=False):
        batch.append(event)
        if ends or event is end:
            yield batch
            batch = []


def ended(reason="stop", stop=None):
    return End("0", reason, None, RequestStats(10, 4, 3, 0.1, 0.2, 0.3, 0.5, 1.0), stop)


def streamed(one, batches):
    writer = StreamWriter(one, MessageWriter(one), Tally(one))
    return b"".join(writer.write(batch, 0.5) for batch in batches)


def whole(one, batches):
    answer, tally = MessageWriter(one), Tally(one)
    for batch in batches:
        for news in tally.sort(batch, 0.5):
            answer.add(news)
    return json.loads(orjson.dumps(answer.body(Timings(0.1, 0.2))))


def events_of(wire):
    found = []
    for event in wire.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        data = json.loads(data.removeprefix("data: "))
        assert name == f"event: {data['type']}"
        found.append(data)
    return found


def added_up(events):
    """Check the order of a stream's events and return the message that they make."""
    first, *middle, delta, last = events
    assert [first["type"], delta["type"], last["type"]] == ["message_start", "message_delta", "message_stop"]
    message, arguments, is_open = first["message"], [], False
    assert message["content"] == []
    for event in middle:
        kind = event["type"].removeprefix("content_block_")
        assert event["index"] == len(message["content"]) - (kind != "start")
        assert is_open == (kind != "start")
        is_open = kind != "stop"
        if kind == "start":
            message["content"].append(event["content_block"])
            arguments.append("")
        elif kind == "delta":
            block, told = message["content"][-1], event["delta"]
            if told["type"] == "signature_delta":
                block["signature"] = told["signature"]
                continue
            assert told["type"] == KINDS[block["type"]]
            if block["type"] == "tool_use":
                arguments[-1] += told["partial_json"]
            else:
                assert told[block["type"]]
                block[block["type"]] += told[block["type"]]
    assert not is_open
    for block, text in zip(message["content"], arguments, strict=True):
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(orjson.dumps(input_of(text)))
    return message | delta["delta"] | {"usage": message["usage"] | delta["usage"]}


@example(BROKEN[0], [(30, True)])
@given(st.sampled_from(ANSWERS), st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=12))
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_however_an_answer_is_cut_it_is_the_same_message_in_order(reason, text, cuts):
    one = call()
    at_once, again = (whole(one, batches_of(text, some, ended(reason))) for some in ([], cuts))
    message = added_up(events_of(streamed(one, batches_of(text, cuts, ended(reason)))))
    # Deltas, not tokens, are cut here, and each counts as one.
    n_thought = [one["usage"].pop("output_tokens_details") for one in (at_once, again, message)]
    assert n_thought[1] == n_thought[2]
    assert at_once == again
    if text in BROKEN and reason == "stop":  # a stream has told of a call by then
        message["content"] = [block for block in message["content"] if block["type"] != "tool_use"]
    assert again == message


def content(text, reason="stop"):
    return [
        (block["type"], block.get("text") or block.get("thinking") or block.get("input"))
        for block in whole(call(), batches_of(text, [], ended(reason)))["content"]
    ]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", {}),
        ("{", {}),
        ('{"city": "', {}),
        ('{"city": "Par', {}),
        ('{"city": "Paris"', {"city": "Paris"}),
        ('{"city": "Paris", "days": 2', {"city": "Paris"}),
        ('{"city": "a, b", "days": 2 ', {"city": "a, b", "days": 2}),
        ('{"a": 1.50, "b": [2, 3', {"a": 1.5}),
        ('{"a": 1, "b": {"c": 2, "d": 3}', {"a": 1, "b": {"c": 2, "d": 3}}),
        ('{"a": "x\\", \\\\", "b": "y, \\', {"a": 'x", \\'}),
    ],
)
def test_of_cut_arguments_those_are_told_that_are_whole(text, whole):
    assert json.loads(orjson.dumps(input_of(text))) == whole


def test_a_whole_call_that_is_cut_in_its_end_has_no_text_behind_it():
    blocks = content(CALL[:-6], "length")
    assert blocks == [("tool_use", {"city": "Łódź", "n": [1, 2.5]})]
    assert content(CALL[:20], "length") == []


def test_what_turned_out_to_be_no_call_is_text_and_no_call():
    assert content(CALL[:60]) == [("text", CALL[:60])]
    assert [kind for kind, _ in content(CALL + "\n" + CALL[:60])] == ["tool_use", "text"]


def test_without_a_speech_all_is_text():
    message = whole(call(speech=False), batches_of(CALL, [], ended()))
    assert message["content"] == [{"type": "text", "text": CALL}]
    assert "output_tokens_details" not in message["usage"]


@pytest.mark.parametrize(
    ("text", "end", "reason", "sequence"),
    [
        ("x", ended(), "end_turn", None),
        ("x", ended(stop="###"), "stop_sequence", "###"),
        ("x", ended("length"), "max_tokens", None),
        (CALL, ended(), "tool_use", None),
        (CALL, ended(stop="###"), "tool_use", None),
        (CALL, ended("length"), "max_tokens", None),
    ],
)
def test_why_a_message_ended(text, end, reason, sequence):
    message = whole(call(), batches_of(text, [], end))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_cached_tokens_are_no_input_and_are_told_at_both_ends():
    counts = {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    events = events_of(streamed(call(), batches_of("Hello", [(2, True)], ended())))
    assert events[0]["message"]["usage"].items() >= (counts | {"output_tokens": 0}).items()
    assert events[-2]["usage"].items() >= (counts | {"output_tokens": 3}).items()


def test_digits_of_arguments_are_kept_as_they_were_written():
    assert orjson.dumps(input_of('{"n": 123456789012345678901234567890}')) == (
        b'{"n": 123456789012345678901234567890}'
    )


@pytest.mark.parametrize("text", ["", "[", '{"a": tru', '{"n": 123456789012345678901234567890, "', "[1]x"])
def test_no_arguments_are_an_error(text):
    assert orjson.dumps(input_of(text)).startswith(b"{")
