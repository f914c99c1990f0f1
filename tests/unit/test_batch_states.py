"""How a batch goes on, what its lines must be, in which order they are asked, and whose turn it is."""

import itertools
import json
import random

import pytest

from cobali_ray.api.batches.turns import MAX_AT_ONCE, Candidate, Room, Turns
from cobali_ray.core.views.stats import LoadView
from cobali_ray.errors import BadLineError, IllegalTransitionError
from cobali_ray.store.lines import (
    Answer,
    LineSplitter,
    SeenIds,
    answer_line,
    left_line,
    message_left_line,
    message_result_line,
    parse_line,
    parse_message_request,
)
from cobali_ray.store.order import order_key
from cobali_ray.store.states import OVER, TRANSITIONS, BatchChange, BatchStatus, advance, may


@pytest.mark.parametrize(
    ("status", "change"),
    [pytest.param(*one, id="-".join(one)) for one in itertools.product(BatchStatus, BatchChange)],
)
def test_a_change_leads_where_the_table_says_or_is_an_error(status, change):
    assert may(status, change) is ((status, change) in TRANSITIONS)
    if may(status, change):
        assert advance(status, change) is TRANSITIONS[status, change] is not status
    else:
        with pytest.raises(IllegalTransitionError):
            advance(status, change)


def test_what_is_over_stays_so_and_everything_else_can_end():
    assert not {status for status, _ in TRANSITIONS} & OVER
    reached = set(OVER)
    for _ in BatchStatus:
        reached |= {status for (status, _), then in TRANSITIONS.items() if then in reached}
    assert reached == set(BatchStatus)


def lines_of(pieces, most=1000):
    splitter = LineSplitter(most)
    return [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.end())


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"a\nb\n", [(1, b"a"), (2, b"b")], id="lines"),
        pytest.param(b"a\nb", [(1, b"a"), (2, b"b")], id="no-break-at-the-end"),
        pytest.param(b"a\r\n\r\n \nb\r\n", [(1, b"a"), (4, b"b")], id="blank-lines-count"),
        pytest.param(b"\xef\xbb\xbfa\n", [(1, b"a")], id="byte-order-mark"),
    ],
)
def test_lines_are_the_same_however_their_bytes_arrive(data, lines):
    assert lines_of([data]) == lines
    assert lines_of([data[i : i + 1] for i in range(len(data))]) == lines


def test_a_line_that_is_too_long_is_refused_before_it_has_ended():
    with pytest.raises(BadLineError, match="line 2 is longer than 10 bytes"):
        lines_of([b"a\n", b"x" * 6, b"y" * 6], most=10)


GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "p"}}


def test_a_line_says_what_it_asks():
    asked = parse_line(1, json.dumps(GOOD).encode())
    assert (asked.custom_id, asked.endpoint, asked.model) == ("a", "/v1/completions", "m")
    assert parse_line(1, json.dumps(GOOD | {"body": {}}).encode()).model == ""
    assert parse_message_request(1, {"custom_id": "a-1", "params": {}}).endpoint == "/v1/messages"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is not valid JSON at column"),
        ("[]", "is not a JSON object"),
        (GOOD | {"custom_id": 1}, "needs a custom_id"),
        (GOOD | {"custom_id": "x" * 513}, "needs a custom_id"),
        (GOOD | {"method": "GET"}, "needs the method POST"),
        (GOOD | {"url": "/v1/files"}, "needs one of these as its url"),
        (GOOD | {"body": None}, "needs an object as its body"),
        (GOOD | {"body": {"stream": True}}, "has body.stream"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_number(line, why):
    with pytest.raises(BadLineError, match=f"line 7 {why}"):
        parse_line(7, line.encode() if isinstance(line, str) else json.dumps(line).encode())


@pytest.mark.parametrize("line", [None, {}, {"custom_id": "a b", "params": {}}, {"custom_id": "a"}])
def test_what_is_wrong_with_a_request_for_a_message_is_said(line):
    with pytest.raises(BadLineError, match="line 3"):
        parse_message_request(3, line)


def test_an_id_is_taken_once():
    seen = SeenIds()
    seen.add(1, "a")
    seen.add(2, "b")
    with pytest.raises(BadLineError, match="line 3 has the custom_id 'a' of a line before it"):
        seen.add(3, "a")


def test_answers_are_written_as_each_api_has_it():
    good, bad = Answer(200, b'{"n":1}', "id1"), Answer(400, b'{"type":"error"}', "id2")
    response = {"status_code": 200, "request_id": "id1", "body": {"n": 1}}
    assert json.loads(answer_line("a", good)) == {
        "id": "id1",
        "custom_id": "a",
        "response": response,
        "error": None,
    }
    assert json.loads(left_line("id3", "a", "batch_expired"))["error"]["code"] == "batch_expired"
    written = [
        message_result_line("a", good),
        message_result_line("a", bad),
        message_left_line("", "a", "batch_expired"),
        message_left_line("", "a", "batch_cancelled"),
    ]
    assert all(line.endswith(b"}\n") for line in written)
    assert [json.loads(line)["result"] for line in written] == [
        {"type": "succeeded", "message": {"n": 1}},
        {"type": "errored", "error": {"type": "error"}},
        {"type": "expired"},
        {"type": "canceled"},
    ]


def chat(system, text):
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}


@pytest.mark.parametrize("seed", range(5))
def test_requests_with_a_common_beginning_are_neighbours(seed):
    rng = random.Random(seed)
    systems = [f"{i} " + "".join(rng.choices("abcdefgh ", k=400)) for i in range(6)]
    parts = [system + "".join(rng.choices("ij", k=300)) for system in systems for _ in range(2)]
    bodies = [chat(rng.choice(parts), f"question {i}") for i in range(120)]
    rng.shuffle(bodies)
    ordered = sorted(bodies, key=lambda body: order_key("m", body))
    for n in (128, 600):  # what parts of a tree share, near the root and far from it
        begins = [body["messages"][0]["content"][:n] for body in ordered]
        assert len([begin for begin, _ in itertools.groupby(begins)]) == len(set(begins))


def test_models_come_one_after_another_and_kinds_of_bodies_have_keys():
    bodies = [{"prompt": "a"}, {"input": ["a", "b"]}, {"prompt": [1, 2]}, {"system": [{"text": "s"}]}, {}]
    keys = sorted(order_key(model, body) for body in bodies for model in ("a", "b"))
    assert [key[:1] for key in keys] == [b"a"] * 5 + [b"b"] * 5
    assert order_key("m", {"prompt": "a" * 999}) == order_key("m", {"prompt": "a" * 999, "max_tokens": 1})


def view(n_free):
    return LoadView(ahead=(), n_free=n_free, slot_s=1, token_s=0, depth_s=0, n_kept=0)


def test_lines_take_what_others_leave():
    room = Room()
    assert room.free([], 0.0) == 1, "one finds out whether a model can be loaded"
    seen = [view(16)]
    assert room.free(seen, 0.0) == 19, "16 slots, and a few that wait for one"
    room.n_open = 19
    assert room.free(seen, 0.0) == 0
    assert room.free([view(-3)], 0.0) == 0, "16 have slots, and 3 wait: nobody else is there"
    assert room.free([view(-9)], 0.0) == 12 - 19, "six others have slots: that many fewer"
    assert room.free([view(-40)], 0.0) < -18, "others want all of them"
    room.n_open = 0
    assert room.free([view(-40)], 0.0) == 0
    assert room.free([view(9999)], 0.0) == MAX_AT_ONCE
    paused, idle = view(16)._replace(paused=True), Room()
    assert idle.free([view(0), paused], 0.0) == 0, "nobody is sent to the free slots of a paused engine"
    assert idle.free([paused], 0.0) > 0, "unless all are: then they wait there like others"
    room.paused_until_s = 5.0
    assert room.free([view(4)], 4.0) == 0
    assert room.free([view(4)], 5.0) == 5
    assert Room(fixed=4, n_open=3).free([view(-40)], 0.0) == 1


def begun(turns, candidates, n):
    """Let n lines begin that do not end, and return how many each batch got."""
    counts = dict.fromkeys((one.batch_id for one in candidates), 0)
    for _ in range(n):
        one = turns.next(candidates)
        turns.begin(one)
        counts[one.batch_id] += 1
    return counts


def test_tenants_share_by_weight_and_batches_of_one_evenly():
    one, two, other = (
        Candidate(name, tenant, weight, True)
        for name, tenant, weight in (("a1", "a", 1.0), ("a2", "a", 1.0), ("b1", "b", 2.0))
    )
    assert begun(Turns(), [one, two, other], 12) == {"a1": 2, "a2": 2, "b1": 8}
    turns, order = Turns(), []
    for _ in range(8):  # where one fits at a time, they take turns
        first = turns.next([one, two, other])
        turns.begin(first)
        turns.end(first)
        order.append(first.batch_id)
    assert order == ["a1", "b1", "a2", "b1", "a1", "b1", "a2", "b1"]
    loaded = [one._replace(present=False), other]
    assert begun(Turns(), loaded, 5) == {"a1": 0, "b1": 5}, "what is not loaded waits"
    assert Turns().next([]) is None
