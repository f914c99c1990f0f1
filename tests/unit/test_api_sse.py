"""Events -> bytes."""

import json
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.timings import Pace
from cobali_ray.api.reply.answer import timings, usage
from cobali_ray.api.reply.logprobs import CompletionLogprobs, WholeLogprobs, chat_content, chat_logprob_items
from cobali_ray.api.reply.sse import ChatWriter, CompletionWriter
from cobali_ray.api.reply.tally import StreamWriter, Tally
from cobali_ray.core.request.events import Delta, End, RequestStats, TokenLogprob
from cobali_ray.core.request.request import Request
from cobali_ray.errors import InvariantError


def call(n=1, n_prompts=1, **changes):
    base = {
        "call_id": "c",
        "created": 7,
        "model": 'quo"ted',
        "fingerprint": "fp_1",
        "requests": tuple(
            Request(request_id=str(i), prompt=(1,) * (1 + i // n), max_tokens=1) for i in range(n * n_prompts)
        ),
        "n": n,
        "echoes": ("",) * (n * n_prompts),
        "stream": True,
        "include_usage": False,
        "with_logprobs": False,
    }
    return Call(**(base | changes))


def numbers(n_output=3, e2e_s=1.0, n_cached=0):
    return RequestStats(1, n_cached, n_output, 0.1, 0.2, 0.3, 0.5, e2e_s)


def end(request_id="0", **changes):
    return End(request_id, "stop", None, numbers(**changes))


def parse(wire):
    events = wire.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return [event if event == "data: [DONE]" else json.loads(event[6:]) for event in events]


def writer(one, frames=ChatWriter):
    return StreamWriter(one, frames(one), Tally(one))


@pytest.mark.parametrize(
    ("frames", "kind", "choice"),
    [
        (ChatWriter, "chat.completion.chunk", {"delta": {"content": 'a\n"b\u2028é😀'}}),
        (CompletionWriter, "text_completion", {"text": 'a\n"b\u2028é😀'}),
    ],
)
@pytest.mark.parametrize("include_usage", [False, True])
def test_one_chunk(frames, kind, choice, include_usage):
    stream = writer(call(include_usage=include_usage), frames)
    chunk = parse(stream.write([Delta("0", 'a\n"b\u2028é😀', (1,))], 0.5))[-1]
    expected = {
        "id": "c", "object": kind, "created": 7, "model": 'quo"ted', "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "logprobs": None, "finish_reason": None} | choice],
    }  # fmt: skip
    assert chunk == expected | ({"usage": None} if include_usage else {})


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
@pytest.mark.parametrize(("frames", "take"), [
    (ChatWriter, lambda c: c["delta"].get("content", "")),
    (CompletionWriter, lambda c: c["text"]),
])  # fmt: skip
def test_any_text_survives_the_framing(frames, take, texts):
    stream = writer(call(), frames)
    wire = b"".join(stream.write([Delta("0", text, (1,))], 0.5) for text in texts) + stream.write(
        [end()], 1.0
    )
    events = parse(wire)
    assert events.pop() == "data: [DONE]"
    assert "".join(take(event["choices"][0]) for event in events) == "".join(texts)
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "stop"


@given(st.lists(st.integers(0, 4), max_size=12))
def test_however_a_stream_is_cut_into_batches_it_says_the_same(cuts):
    events = [Delta(str(i % 2), f"{i}.", (1,)) for i in range(8)] + [end("0"), end("1")]
    stream = writer(call(n=2))
    wire, rest = b"", events
    for cut in cuts:
        wire += stream.write(rest[:cut], 0.5)
        rest = rest[cut:]
    chunks = parse(wire + stream.write(rest, 1.0) if rest else wire)
    texts, reasons = ["", ""], [[], []]
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            reasons[choice["index"]].append(choice["finish_reason"])
    assert texts == ["0.2.4.6.", "1.3.5.7."]
    assert [r[-1] for r in reasons] == ["stop", "stop"]
    assert [r.count("stop") for r in reasons] == [1, 1]
    assert [i for i, chunk in enumerate(chunks[:-1]) if "timings" in chunk] == [len(chunks) - 2]


def test_an_echo_opens_each_choice():
    one = call(n=2, echoes=("once ", "once "))
    chunks = parse(writer(one, CompletionWriter).write([Delta("1", "x", (1,)), end("0")], 1.0))
    assert [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks] == [
        (1, "once "),
        (1, "x"),
        (0, "once "),
        (0, ""),
    ]


def test_nothing_may_follow_an_end():
    tally = Tally(call())
    list(tally.sort([end()], 1.0))
    with pytest.raises(InvariantError):
        list(tally.sort([Delta("0", "late", (1,))], 1.0))


def test_usage_counts_a_prompt_once():
    stats = [numbers(n_output=i, n_cached=i)._replace(n_prompt=i // 3 + 1) for i in (1, 2, 3, 4)]
    told = {
        "prompt_tokens": 3,
        "completion_tokens": 10,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert usage(call(n=2, n_prompts=2), stats, None) == told
    reasoned = {"completion_tokens_details": {"reasoning_tokens": 7}}
    assert usage(call(n=2, n_prompts=2), stats, 7) == told | reasoned


SILENT = {"itl_p50_s": None, "itl_p99_s": None, "itl_max_s": None}


def test_timings_are_of_the_slowest_choice_then_of_each():
    tally, n_outputs = Tally(call(n=3)), (2, 11, 1)
    list(tally.sort([Delta("0", "a", (1,)), Delta("1", "b", (1,))], 1.0))
    list(tally.sort([Delta("0", "c", (1,)), end("0", n_output=2)], 1.5))
    list(tally.sort([Delta("1", "d", (1,)), Delta("2", "e", (1,)), end("2", n_output=1)], 1.75))
    list(tally.sort([Delta("1", "f", (1,)), end("1", e2e_s=3.0, n_output=11)], 2.0))
    slowest = {
        "intake_s": None, "queue_s": 0.1, "prefill_s": 0.2, "ttft_s": 1.0, "decode_s": 0.5, "e2e_s": 2.25,
        "tokens_per_second": 20.0, "itl_p50_s": 0.25, "itl_p99_s": 0.75, "itl_max_s": 0.75,
    }  # fmt: skip
    told = timings(tally.stats(), tally.times(2.25))
    choices = told.pop("choices")
    assert told == slowest
    assert choices[1] == slowest | {"completion_tokens": 11, "cached_tokens": 0, "e2e_s": 2.0}
    assert [one["completion_tokens"] for one in choices] == list(n_outputs)
    assert [(one["ttft_s"], one["e2e_s"]) for one in choices] == [(1.0, 1.5), (1.0, 2.0), (1.75, 1.75)]
    assert [one["itl_max_s"] for one in choices] == [0.5, 0.75, None]
    assert choices[2]["tokens_per_second"] is None


def test_one_choice_has_no_list_of_choices():
    tally = Tally(call())
    list(tally.sort([end(n_output=1)], 1.5))  # its one token has no text
    told = timings(tally.stats(), tally.times(3.9))
    assert "choices" not in told
    assert (told["ttft_s"], told["e2e_s"]) == (1.5, 3.9)
    assert told.items() >= SILENT.items()


@given(st.lists(st.floats(0, 10), min_size=2, max_size=200))
def test_itls_are_gaps_that_there_were(times):
    pace, times = Pace(), sorted(times)
    for at in times:
        pace.speak(at)
    gaps = sorted(b - a for a, b in pairwise(times))
    told = pace.itl()
    assert set(told.values()) <= set(gaps)
    assert told["itl_max_s"] == gaps[-1]
    for name, share in (("itl_p50_s", 0.5), ("itl_p99_s", 0.99)):
        assert sum(gap <= told[name] for gap in gaps) >= share * len(gaps)
        assert sum(gap < told[name] for gap in gaps) < share * len(gaps)


def test_offsets_count_a_character_once_however_many_tokens_it_took():
    smile = "😀".encode()
    pieces = [b"a", smile[:2], smile[2:], b"b"]
    counted = CompletionLogprobs(offset=5).take(TokenLogprob(i, p, -1.0, ()) for i, p in enumerate(pieces))
    assert counted["text_offset"] == [5, 6, 6, 7]


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan"), -1e30])
def test_impossible_logprobs_are_finite_on_the_wire(logprob):
    item = TokenLogprob(1, b"x", logprob, ((2, b"y", logprob),))
    (wire,) = chat_logprob_items([item])
    assert (wire["logprob"], wire["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert CompletionLogprobs(0).take([item])["token_logprobs"] == [-9999.0]


def test_halves_of_characters_keep_their_bytes():
    (wire,) = chat_logprob_items([TokenLogprob(1, b"\xf0\x9f", -1.0, ())])
    assert (wire["token"], wire["bytes"]) == ("�", [0xF0, 0x9F])


@given(
    st.lists(
        st.lists(st.builds(TokenLogprob, st.just(1), st.binary(max_size=4), st.floats(-9, 0), st.just(())))
    )
)
def test_logprobs_encoded_as_they_come_are_those_of_all_at_once(batches):
    flat = [item for batch in batches for item in batch]
    for make in (lambda: chat_content, lambda: CompletionLogprobs(3).take):
        whole = WholeLogprobs(make())
        for batch in batches:
            whole.add(batch)
        assert orjson.loads(orjson.dumps(whole.json())) == orjson.loads(orjson.dumps(make()(flat)))
