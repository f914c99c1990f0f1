"""Bodies of every size and encoding: within limits, off the event loop, dropped with their sender."""

import asyncio
import gc
import gzip
import json
import threading
import time
import zlib

import pytest
from fake_client import ASK, CARD, CHAT, Wire
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.api.body import reading as body_module
from cobali_ray.api.call import intake as intake_module
from cobali_ray.core.views.stats import ModelCard
from tests.waiting import until

COMPLETIONS = "/v1/completions"
ROOMY = ModelCard(model_id="fake", n_vocab=1_000_000, n_ctx_slot=1_000_000, created_s=1)
LONGEST_GAP_S = 0.3
"""What a list of a million numbers takes on the slowest processor seen, 0.22, and some more."""


def many(n, value):
    return [value] * n


DEEP = {}
for _ in range(400):
    DEEP = {"a": {"properties": DEEP}}
RULES = "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(990)) + 'r990 ::= "x"'

HEAVY = {
    "unknown-fields": (CHAT, ASK | {f"f{i}": 1 for i in range(30_000)}, 400),
    "wrong-roles": (CHAT, {"messages": many(200_000, {"role": "king", "content": "x"})}, 400),
    "empty-messages": (CHAT, {"messages": many(10_000, {"role": "user", "content": ""})}, 200),
    "values": (CHAT, ASK | {"metadata": many(2_000_000, [])}, 400),
    "prompts": (COMPLETIONS, {"prompt": many(900_000, "x")}, 400),
    "ids": (COMPLETIONS, {"prompt": many(380_000, 1)}, 200),
    "detokenize": ("/detokenize", {"tokens": many(380_000, 0)}, 200),
    "tokenize": ("/tokenize", {"content": "a " * 400_000, "with_pieces": True}, 200),
    "long-model-of-halves": (CHAT, ASK | {"model": "\ud83d" * 1_300_000}, 404),
    "schema": (CHAT, ASK | {"json_schema": {"enum": many(20_000, "value")}}, 200),
    "deep-schema": (CHAT, ASK | {"json_schema": {"properties": DEEP}}, 400),
    "rules": (CHAT, ASK | {"grammar": RULES}, 200),
    "tools-that-are-none": (CHAT, ASK | {"tools": many(380_000, 1)}, 400),
    "anthropic": ("/v1/messages", {"max_tokens": 1, "messages": many(9_000, ASK["messages"][0])}, 200),
    "responses": ("/v1/responses", {"input": many(9_000, ASK["messages"][0])}, 200),
    "samplers": ("/completion", {"prompt": "x", "samplers": many(380_000, 1)}, 400),
    "ollama": ("/api/chat", {"messages": many(9_000, ASK["messages"][0])}, 200),
    "context": ("/api/generate", {"prompt": "x", "context": many(380_000, 1)}, 200),
    "no-texts": ("/api/embed", {"input": many(380_000, 1)}, 400),
}
ALIKE = {
    "parts": (
        CHAT,
        {"messages": [{"role": "user", "content": many(9_000, {"type": "text", "text": ""})}]},
        200,
    ),
    "biases": (CHAT, ASK | {"logit_bias": {str(i): 1 for i in range(30_000)}}, 400),
    "stops": (CHAT, ASK | {"stop": many(900_000, "x")}, 400),
    "long-model-of-pairs": (CHAT, ASK | {"model": "\U0001f600" * 660_000}, 404),
    "choices": (CHAT, ASK | {"guided_choice": [f"c{i}" for i in range(15_000)]}, 200),
    "choices-that-are-none": (CHAT, ASK | {"guided_choice": many(380_000, 1)}, 400),
    "anthropic-tools": ("/v1/messages", ASK | {"max_tokens": 1, "tools": many(380_000, 1)}, 400),
    "anthropic-stops": ("/v1/messages", ASK | {"max_tokens": 1, "stop_sequences": many(380_000, 1)}, 400),
    "responses-tools": ("/v1/responses", {"input": "x", "tools": many(380_000, 1)}, 400),
    "native-ids": ("/completion", {"prompt": many(380_000, 0)}, 200),
    "ollama-messages-that-are-none": ("/api/chat", {"messages": many(380_000, 1)}, 400),
    "no-context": ("/api/generate", {"prompt": "x", "context": many(380_000, -1)}, 400),
    "no-images": ("/api/generate", {"prompt": "x", "images": many(380_000, 1)}, 400),
}
"""Read and refused in the way of one above."""
BODIES = [pytest.param(*one, id=name) for name, one in HEAVY.items()]
BODIES += [pytest.param(*one, id=name, marks=pytest.mark.thorough) for name, one in ALIKE.items()]


@pytest.fixture(scope="module")
def frozen():
    """Spare the garbage collector what this process is made of, as Serve does in every replica."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(("path", "body", "status"), BODIES)
async def test_no_body_holds_the_event_loop(app, client, path, body, status):
    """What other streams see: the longest time in which the event loop did not come round.

    In CPU time of this process and the best of six, so that others on this machine do not count.
    """
    client.the_card, client.vocabulary = ROOMY, ["<s>"]
    data, longest_s = json.dumps(body).encode(), []
    for _ in range(6):
        longest_s.append(await longest_gap_s(wire := Wire(app, path, data)))
        assert wire.status == status, wire.body[:200]
        if longest_s[-1] < LONGEST_GAP_S:
            return
    raise AssertionError(f"the event loop stood still for {longest_s} s")


async def longest_gap_s(wire):
    """Return the longest CPU time between two turns of the event loop while a request is answered."""
    answering, gaps = wire.start(), []
    last = time.process_time()

    def turn():
        nonlocal last
        now = time.process_time()
        gaps.append(now - last)
        last = now
        return answering.done()

    await until(turn, pause_s=0.001)
    await answering
    return max(gaps)


class Gate:
    """Stands in the tokeniser of marked texts until it is opened, or until nobody waits."""

    def __init__(self, client, monkeypatch):
        self.open, self.inside, self.gave_up = threading.Event(), threading.Event(), threading.Event()
        tokenize = client.tokenize

        def slow(text, *, is_cancelled, **how):
            if "slow" in text:
                self.inside.set()
                while not self.open.wait(0.001):
                    if is_cancelled():
                        self.gave_up.set()
                        break
            return tokenize(text, is_cancelled=is_cancelled, **how)

        monkeypatch.setattr(client, "tokenize", slow)


@pytest.fixture
def gate(client, monkeypatch):
    client.the_card = ROOMY
    gate = Gate(client, monkeypatch)
    yield gate
    gate.open.set()


def chat(text):
    return ASK | {"messages": [{"role": "user", "content": text}]}


async def test_a_small_request_does_not_wait_for_large_ones(app, gate):
    large = [
        Wire(app, CHAT, chat("slow" + "x" * intake_module.SMALL_BYTES)).start()
        for _ in range(2 * (intake_module.N_SMALL + intake_module.N_LARGE))
    ]
    await until(gate.inside.is_set)
    small = await asyncio.wait_for(Wire(app, CHAT, chat("hello")).run(), 60)
    assert small.status == 200
    assert not any(task.done() for task in large)
    gate.open.set()
    assert {wire.status for wire in await asyncio.gather(*large)} == {200}


@pytest.mark.parametrize("leaves", ["hangs up", "is cancelled"])
async def test_work_stops_when_its_sender_is_gone(app, client, gate, leaves):
    wire = Wire(app, CHAT, chat("slow"))
    task = wire.start()
    await until(gate.inside.is_set)
    if leaves == "hangs up":
        wire.hang_up()
        await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(gate.gave_up.is_set)
    assert not client.requests
    assert not wire.sent


async def test_chats_are_rendered_and_tokenised_off_the_event_loop(post, client, monkeypatch):
    threads = set()
    for name in ("render", "tokenize"):
        real = getattr(client, name)
        monkeypatch.setattr(
            client, name, lambda *a, real=real, **k: (threads.add(threading.get_ident()), real(*a, **k))[1]
        )
    assert (await post(CHAT, ASK)).status == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_bodies_inside_are_bounded(make_app, gate, monkeypatch):
    app = make_app(max_body_bytes=1000)
    monkeypatch.setattr(intake_module, "HELD_BODIES", 2)
    slow = [Wire(app, CHAT, chat("slow" + "x" * 800)).start() for _ in range(2)]
    await until(gate.inside.is_set)
    refused = await Wire(app, CHAT, chat("x" * 800)).run()
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert "max_body_bytes" in refused.json["error"]["message"]
    gate.open.set()
    await asyncio.gather(*slow)
    assert (await Wire(app, CHAT, chat("x" * 800)).run()).status == 200, "what is over makes room"


async def test_bodies_of_one_key_leave_room_for_those_of_others(make_app, gate, monkeypatch):
    app = make_app(max_body_bytes=1000, api_keys=("a", "b"))
    monkeypatch.setattr(intake_module, "HELD_OF_TENANT", 1)
    alice, bob = ({"headers": [("x-api-key", key)]} for key in "ab")
    slow = Wire(app, CHAT, chat("slow" + "x" * 800), **alice).start()
    await until(gate.inside.is_set)
    assert (await Wire(app, CHAT, chat("x" * 800), **alice).run()).status == 429
    other = Wire(app, CHAT, chat("x" * 800), **bob).start()
    gate.open.set()
    await asyncio.gather(slow, other)
    assert other.result().status == 200


async def test_a_body_that_stops_is_answered(app, monkeypatch):
    monkeypatch.setattr(body_module, "PIECE_TIMEOUT_S", 0.01)
    wire = Wire(app, CHAT, chunks=[b'{"mess'])
    wire.inbox = asyncio.Queue()
    wire.inbox.put_nowait({"type": "http.request", "body": b'{"mess', "more_body": True})
    await wire.run()
    assert (wire.status, wire.json["error"]["code"]) == (408, "body_timeout")


# -- content encodings

PLAIN = json.dumps(ASK).encode()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(PLAIN)),
        ("x-gzip", gzip.compress(PLAIN)),
        ("gzip", gzip.compress(PLAIN[:15]) + gzip.compress(PLAIN[15:])),
        ("deflate", zlib.compress(PLAIN)),
        ("identity", PLAIN),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_packed_bodies_are_read(post, client, encoding, packed):
    chunks = [packed[:9], packed[9:20], packed[20:]]
    wire = await post(CHAT, b"", chunks=chunks, headers=[("Content-Encoding", encoding)])
    assert wire.status == 200
    assert client.messages[0][0]["content"] == "hi"


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        pytest.param("br", PLAIN, 415, "unsupported_encoding", id="unknown"),
        pytest.param("gzip", PLAIN, 400, "invalid_json", id="not-packed"),
        pytest.param("gzip", gzip.compress(PLAIN)[:-9], 400, "invalid_json", id="cut-off"),
        pytest.param("gzip", gzip.compress(bytes(100_000_000)), 413, "body_too_large", id="bomb"),
        pytest.param("gzip", 2 * gzip.compress(bytes(6_000_000)), 413, "body_too_large", id="two-bombs"),
        pytest.param("gzip", gzip.compress(PLAIN) + b"more", 400, "invalid_json", id="more-behind"),
        pytest.param(
            "deflate", zlib.compress(PLAIN) + b"more", 400, "invalid_json", id="more-behind-deflate"
        ),
    ],
)
async def test_bodies_that_do_not_unpack_are_refused(post, encoding, body, status, code):
    wire = await post(CHAT, body, headers=[("content-encoding", encoding)])
    assert (wire.status, wire.json["error"]["code"]) == (status, code)


# -- prompts that cannot fit

LONG = "word " * (CARD.n_ctx_slot + 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, chat(LONG), id="chat"),
        pytest.param(
            CHAT, {"messages": many(CARD.n_ctx_slot + 1, {"role": "user", "content": ""})}, id="messages"
        ),
        pytest.param(COMPLETIONS, {"prompt": LONG}, id="text"),
        pytest.param(COMPLETIONS, {"prompt": many(CARD.n_ctx_slot + 1, 1)}, id="ids"),
    ],
)
async def test_what_cannot_fit_is_refused_in_the_words_that_clients_know(post, client, path, body):
    wire = await post(path, body | {"max_tokens": 7})
    error = wire.json["error"]
    assert (wire.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert error["message"].startswith(
        f"This model's maximum context length is {CARD.n_ctx_slot} tokens. However"
    )
    assert "7 in the completion" in error["message"]
    assert not client.requests


# -- how much there is to read


@given(
    st.recursive(
        st.integers(0, 9) | st.text('\\"[]{},:ab', max_size=6),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text('\\"[{,', max_size=3), inner, max_size=4)
        ),
    ).filter(lambda value: isinstance(value, dict))
)
def test_texts_weigh_nothing_but_their_quotes(value):
    def weight(part):
        match part:
            case dict():
                return 3 + sum(8 + weight(inner) for inner in part.values()) + max(len(part) - 1, 0)
            case list():
                return 3 + sum(weight(inner) for inner in part) + max(len(part) - 1, 0)
            case str():
                return 8
        return 0

    assert body_module._weight_outside_texts(json.dumps(value).encode()) == weight(value)


async def test_a_long_text_full_of_marks_is_read(app, client):
    client.the_card = ROOMY
    text = '{"a":[1,2,3]},\n' * 100_000
    assert (await Wire(app, CHAT, chat(text)).run()).status == 200
    assert client.messages[0][0]["content"] == text
