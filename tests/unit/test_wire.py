"""Encode, push, pull, demultiplex: over a real socket, in one process."""

import asyncio
import contextlib
import inspect
import socket
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest
from ear import Ear
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.actors.fork_worker import SOCKET
from cobali_ray.actors.frames import MAX_BACKLOG, MAX_MESSAGE_BYTES, FrameReader, frame
from cobali_ray.actors.wire import Connection, Pusher, decode, encode
from cobali_ray.core.request.events import (
    TIERS,
    Computing,
    Delta,
    End,
    RequestProgress,
    RequestStats,
    TokenLogprob,
    Vectors,
)
from cobali_ray.errors import CobaliError, InternalError
from tests.waiting import until

STATS = RequestStats(3, 1, 2, 0.1, 0.2, 0.3, 0.4, 0.5)
WAIT_S = 60
BROKEN = [
    (5, ""),
    ({}, ""),
    ([], ""),
    (["a"], "a"),
    (["a", 5], "a"),
    ([[], "text", [1], [], None, []], ""),
    (["a", "text", [1], [5], None, []], "a"),
    (["a", "text", 1, [], None, []], "a"),
    (["a", "text", [1], [], [1], []], "a"),
    (["a", "text", [1], [], None, [5]], "a"),
    (["a", ["stop", None, [1]]], "a"),
    (["a", b"rows"], "a"),
    (["a", b"rows", 5], "a"),
    (["a", [None, ["NoSuch"], list(STATS), None]], "a"),
]
VALUES = {"str": "what", "int": 7, "float": 2.5, "bool": True, "str | tuple[str | int, ...]": ("messages", 0)}


def over(events):
    """Return events as they arrive on the other side."""
    return decode(encode("0", events)).events


def error_classes(root=CobaliError):
    return [root, *(kind for sub in root.__subclasses__() for kind in error_classes(sub))]


def an_error(kind):
    """Build one from the annotations of its constructor; those without one take a message."""
    if "__init__" not in vars(kind) and kind.__init__ is Exception.__init__:
        return kind("a message")
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return kind(*(VALUES[inspect.formatannotation(p.annotation).strip("'")] for p in parameters))


# -- encode and decode ----------------------------------------------------------------------------------

number = st.integers(-(2**31), 2**31)
seconds = st.floats(allow_nan=False)
tops = st.tuples(number, st.binary(max_size=4), seconds)
logprob = st.builds(
    TokenLogprob, number, st.binary(max_size=4), st.none() | seconds, st.lists(tops).map(tuple),
    st.none() | number,
)  # fmt: skip
maybe_s = st.none() | seconds
stats = st.builds(
    RequestStats, number, number, number, maybe_s, maybe_s, maybe_s, maybe_s, seconds, number, maybe_s,
    st.sampled_from(TIERS), number,
)  # fmt: skip
tokens, logprobs = st.lists(number, max_size=3).map(tuple), st.lists(logprob, max_size=3).map(tuple)
delta = st.builds(Delta, st.text(), st.text(), tokens, logprobs, st.none() | stats, logprobs)
computing = st.builds(Computing, st.text(), st.booleans())
vectors = st.builds(Vectors, st.text(), st.binary(max_size=16), tokens)
counted = st.integers(0, 2**31)
progress = st.builds(
    RequestProgress, st.text(), counted, counted, counted, seconds, st.none() | counted, st.none() | seconds
)
end = st.builds(End, st.text(), st.sampled_from(["stop", "length"]), st.none(), stats, st.none() | st.text())


@given(st.lists(delta | vectors | progress | computing | end, max_size=6))
def test_events_come_back_as_they_went(events):
    back = decode(encode("7", events))
    assert (back.engine_id, back.lost) == ("7", [])
    back = back.events
    assert back == events
    assert [type(event) for event in back] == [type(event) for event in events]
    told = [lp for e in back if isinstance(e, Delta) for lp in (*e.logprobs, *e.prompt)]
    assert all(isinstance(lp, TokenLogprob) for lp in told)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_errors_come_back_as_they_went(kind):
    error = an_error(kind)
    (back,) = over([End("a", None, error, STATS)])
    assert type(back.error) is kind
    assert back.error.args == error.args
    assert str(back.error) == str(error)
    assert vars(back.error) == vars(error)


def test_an_error_from_a_newer_version_is_an_internal_error():
    class NoSuchError(CobaliError):
        pass

    (back,) = over([End("a", None, NoSuchError("x"), STATS)])
    assert type(back.error) is InternalError
    assert back.error.args == ("NoSuchError", "x")


@pytest.mark.parametrize(("item", "owner"), BROKEN)
def test_an_event_that_cannot_be_read_is_the_loss_of_its_own_request(item, owner):
    events = [["b", "text", [1], [], None, []], item, ["c", ["stop", None, list(STATS), None]]]
    message = decode(msgspec.msgpack.encode(["0", events]))
    assert message.events == [Delta("b", "text", (1,)), End("c", "stop", None, STATS)]
    assert message.lost == [owner]


def test_an_error_that_cannot_be_built_is_an_internal_error():
    item = ["a", [None, ["QueueFullError", []], list(STATS), None]]
    (back,) = decode(msgspec.msgpack.encode(["0", [item]])).events
    assert type(back.error) is InternalError


# -- over a socket --------------------------------------------------------------------------------------


@pytest.fixture
async def puller():
    puller = Ear()
    puller.start()
    yield puller
    puller.close()


@pytest.fixture
def pusher():
    pusher = Pusher("0")
    yield pusher
    pusher.close()


async def test_sockets_lie_in_the_folder_of_their_server(monkeypatch, tmp_path):
    monkeypatch.setenv(SOCKET, str(tmp_path / "forks"))
    ear = Ear()
    assert Path(ear.address).parents[1] == tmp_path
    ear.close()
    assert list(tmp_path.iterdir()) == []


async def test_connections_to_ingresses_that_went_are_closed_when_another_comes(puller, pusher):
    gone = [Ear() for _ in range(3)]
    for i, ingress in enumerate([puller, *gone]):
        assert not pusher.send([(ingress.address, Delta("a", "text", (1,)))])
        assert pusher.n_readers == i + 1
    for ingress in gone:
        ingress.close()
    other = Ear()
    pusher.send([(other.address, Delta("a", "text", (1,)))])
    assert pusher.n_readers == 2
    other.close()


async def test_sockets_of_a_thread_that_hangs_are_left_to_it(puller):
    """A tick that hangs may be in the middle of a send, and sockets are not to be shared by threads."""
    sent, hangs_until = threading.Event(), threading.Event()
    pusher = Pusher("0")

    def tick():
        pusher.send([(puller.address, Delta("a", "one", (1,)))])
        sent.set()
        hangs_until.wait(WAIT_S)
        pusher.send([(puller.address, Delta("a", "two", (1,)))])

    thread = threading.Thread(target=tick)
    thread.start()
    assert sent.wait(WAIT_S)
    pusher.close()
    assert pusher.n_readers == 1
    hangs_until.set()
    assert await puller.texts("a", 2) == ["one", "two"]
    thread.join()
    pusher.close()
    assert pusher.n_readers == 0, "closed, now that its thread has ended"


async def test_each_stream_gets_its_own_events_in_order(puller, pusher):
    for i in range(20):
        assert not pusher.send([(puller.address, Delta(name, f"{name}{i}", (1,))) for name in "ab"])
    assert not pusher.send([(puller.address, End(name, "stop", None, STATS)) for name in "ab"])
    for name in "ab":
        events = await puller.read(name, 21)
        assert [event.text for event in events[:-1]] == [f"{name}{i}" for i in range(20)]
        assert events[-1] == End(name, "stop", None, STATS)


NONSENSE = [5, [], ["0"], ["0", 5], [5, []], ["0", [], 1], ["0", [{"a": 1}]], ["0", [[[], "x"]]]]


@pytest.mark.parametrize("data", [b"", b"\xc1", *map(msgspec.msgpack.encode, NONSENSE)])
async def test_an_undecodable_message_is_ignored(puller, pusher, data):
    with contextlib.closing(Connection(puller.address)) as stranger:
        stranger.send(data)
        stranger.send(encode("0", [Delta("a", "after", (1,))]))
        assert await puller.texts("a", 1) == ["after"]


async def test_an_event_that_cannot_be_encoded_is_the_loss_of_its_own_request(puller, pusher):
    odd = End("odd", None, InternalError(object()), STATS)
    lost = pusher.send(
        [(puller.address, e) for e in (Delta("good", "y", (1,)), Delta("odd", "x", (1,)), odd)]
    )
    assert lost == {"odd"}
    assert await puller.texts("good", 1) == ["y"]


async def test_the_socket_is_for_this_user_only_and_goes_with_the_reader(puller):
    events = Path(puller.address)
    modes = [oct((await asyncio.to_thread(path.stat)).st_mode & 0o777) for path in (events, events.parent)]
    assert modes == ["0o600", "0o700"]
    listener = puller._listener.fileno()
    puller.close()
    assert not asyncio.get_running_loop().remove_reader(listener), "nobody waits for it any more"
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(Path(puller.address).parent.stat)


async def test_a_socket_has_a_name_that_fits_where_temporary_files_lie_deep(tmp_path, monkeypatch, pusher):
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    puller = Ear()
    puller.start()
    assert not pusher.send([(puller.address, Delta("a", "text", (1,)))])
    assert await puller.texts("a", 1) == ["text"]
    puller.close()


LONG = "x" * 3_000_000
"""More than a socket's buffer holds."""


def backlog(pusher, address, first=LONG):
    """Send until an event does not get out; return the texts that did."""
    texts = [first, *map(str, range(100 * MAX_BACKLOG))]
    for n, text in enumerate(texts):
        if pusher.send([(address, Delta("a", text, (1,)))]):
            return texts[:n]
    raise AssertionError("nothing bounds it")


async def test_an_ingress_that_does_not_read_fills_its_backlog_and_holds_up_no_other(puller, pusher):
    stopped = Ear()
    assert len(backlog(pusher, stopped.address)) == MAX_BACKLOG
    theirs = Delta("b", "y", (1,)), End("c", "stop", None, STATS)
    batch = [*((stopped.address, event) for event in theirs), (puller.address, Delta("d", "z", (1,)))]
    assert pusher.send(batch) == {"b", "c"}
    assert await puller.texts("d", 1) == ["z"]
    stopped.close()


@pytest.mark.parametrize("first", [LONG, ""], ids=["longer-than-the-buffer", "messages-fill-the-buffer"])
async def test_an_ingress_that_reads_late_gets_all_that_fitted_in_order_and_what_comes_then(pusher, first):
    late = Ear()
    texts = backlog(pusher, late.address, first)
    assert len(texts) >= MAX_BACKLOG, "whatever the socket's buffer holds"
    late.start()
    assert await late.texts("a", len(texts)) == texts
    await until(lambda: not pusher.send([(late.address, Delta("a", "then", (1,)))]))
    assert await late.texts("a", 1) == ["then"]
    late.close()


def test_an_ingress_that_takes_no_connection_blocks_nobody(tmp_path, pusher):
    address = str(tmp_path / "events")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as only_one,
    ):
        stopped.bind(address)
        stopped.listen(0)
        only_one.connect(address)
        assert pusher.send([(address, Delta("a", "x", (1,)))]) == {"a"}
    assert pusher.n_readers == 0


@pytest.mark.parametrize("behind", [False, True])
async def test_an_ingress_that_died_is_told_nothing_more_and_one_in_its_place_is(pusher, behind):
    died = Ear()
    assert not pusher.send([(died.address, Delta("a", "x", (1,)))])
    if behind:
        backlog(pusher, died.address)
    died.close()
    async with asyncio.timeout(WAIT_S):
        while pusher.n_readers:
            pusher.send([(died.address, Delta("a", "x", (1,)))])
            await asyncio.sleep(0)
    assert pusher.send([(died.address, Delta("a", "x", (1,)))]) == {"a"}, "nobody listens there"
    back = Ear()
    back.start()
    Path(died.address).parent.symlink_to(Path(back.address).parent)
    assert not pusher.send([(died.address, Delta("b", "y", (1,)))])
    assert await back.texts("b", 1) == ["y"]
    Path(died.address).parent.unlink()
    back.close()


async def test_half_a_message_of_an_engine_that_died_is_no_other_ones_beginning(puller, pusher):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine:
        engine.connect(puller.address)
        engine.send(frame(encode("0", [Delta("a", "half", (1,))]))[:9])
    pusher.send([(puller.address, Delta("a", "whole", (1,)))])
    assert await puller.texts("a", 1) == ["whole"]
    assert len(puller._engines) == 1, "the dead one's socket is closed"


async def test_being_woken_for_nothing_is_no_end(puller, pusher):
    loop = asyncio.get_running_loop()
    assert not pusher.send([(puller.address, Delta("a", "one", (1,)))])
    await puller.read("a", 1)
    (engine,) = puller._engines
    puller._read(loop, engine, FrameReader())
    puller._accept(loop)
    assert not pusher.send([(puller.address, Delta("a", "two", (1,)))])
    assert await puller.texts("a", 1) == ["two"]


async def test_a_stranger_that_announces_too_much_is_hung_up_on_and_nobody_else(puller, pusher):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(puller.address)
        stranger.send(b"GET / HTTP/1.1")
        stranger.setblocking(False)
        hung_up = asyncio.get_running_loop().sock_recv(stranger, 1)
        assert await asyncio.wait_for(hung_up, WAIT_S) == b""
    assert not pusher.send([(puller.address, Delta("a", "text", (1,)))])
    assert await puller.texts("a", 1) == ["text"]


async def test_a_message_nobody_would_believe_is_not_sent_and_ends_its_requests_alone(puller, pusher):
    assert not pusher.send([(puller.address, Delta("a", "before", (1,)))])
    huge = "x" * MAX_MESSAGE_BYTES
    assert pusher.send(
        [(puller.address, Delta("b", huge, (1,))), (puller.address, Delta("c", "", (1,)))]
    ) == {"b", "c"}
    assert not pusher.send([(puller.address, Delta("a", "after", (1,)))])
    assert await puller.texts("a", 2) == ["before", "after"]
    assert len(puller._engines) == 1, "over the same connection"


def test_last_words_get_out_though_the_ingress_was_behind(pusher):
    late = Ear()
    *_, last = backlog(pusher, late.address)

    def read_all():
        engine, _ = late._listener.accept()
        with engine:
            while data := engine.recv(1 << 20):
                read.append(data)

    read = []
    late._listener.setblocking(True)
    reader = threading.Thread(target=read_all)
    reader.start()
    pusher.close()
    reader.join()
    assert encode("0", [Delta("a", last, (1,))]) in b"".join(read)
    late.close()


@pytest.mark.parametrize("address", ["nowhere", "/tmp/" + 200 * "x", "{folder}/left-by-one-that-was-killed"])
async def test_a_bad_address_hurts_only_its_own_requests(tmp_path, puller, pusher, address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(tmp_path / "left-by-one-that-was-killed"))
        killed.listen()
    address = address.format(folder=tmp_path)
    lost = pusher.send([(address, Delta("bad", "x", (1,))), (puller.address, Delta("good", "y", (1,)))])
    assert await puller.texts("good", 1) == ["y"]
    assert lost == {"bad"}
    assert pusher.n_readers == 1
