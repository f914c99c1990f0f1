"""The wire between machines: over TCP on loopback, in one process."""

import asyncio

import pytest
import zmq
from ear import Ear
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from zmq.utils.monitor import recv_monitor_message

from cobali_ray.actors import remote_wire, wire
from cobali_ray.actors.address import Address, others_reach
from cobali_ray.actors.frames import MAX_BACKLOG
from cobali_ray.actors.remote_wire import NEW_BEATS, SILENT_BEATS, Reception
from cobali_ray.actors.wire import Pusher
from cobali_ray.core.request.events import Delta, End, RequestStats
from tests.waiting import until

STATS = RequestStats(3, 1, 2, 0.1, 0.2, 0.3, 0.4, 0.5)
WAIT_S = 60
SHUT_OUT = {
    zmq.EVENT_DISCONNECTED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
}
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Take every node for a machine of its own, and let nobody wait long."""
    monkeypatch.setattr(wire, "others_reach", bool)
    monkeypatch.setattr(remote_wire, "BEAT_S", 0.05)
    monkeypatch.setattr(remote_wire, "AGAIN_MS", 50)
    monkeypatch.setattr(remote_wire, "SILENT_BEATS", 200)  # a busy machine is no dead one


@pytest.fixture
def soon(monkeypatch):
    """Take what is silent for gone after a moment."""
    monkeypatch.setattr(remote_wire, "SILENT_BEATS", 10)


@pytest.fixture
async def puller():
    puller = Ear(host=HOST, node_id="a")
    puller.start()
    yield puller
    puller.close()


@pytest.fixture
def pusher():
    pusher = Pusher("0", host=HOST, node_id="b")
    yield pusher
    pusher.close()


def introduce(puller, pusher):
    """Do what the calls of `attend` do; return the engine's key."""
    key = pusher.meet(puller.address, known=False)
    puller.admit(key)
    assert pusher.meet(puller.address, known=True) == key
    return key


# -- addresses ------------------------------------------------------------------------------------------


word = st.text(st.characters(codec="ascii", exclude_categories=["Z", "C"]), min_size=1)


@given(word, word, word, st.text().map(lambda path: f"/{path}"))
def test_an_address_comes_back_as_it_went(node_id, endpoint, key, near):
    node_id = f"n{node_id}"
    for address in (Address(near), Address(near, node_id, endpoint, key)):
        assert Address.parse(str(address)) == address


def test_a_port_is_for_other_nodes_only():
    assert Address("/s", "a", "tcp://10.0.0.1:1", "k").is_far("b")
    assert not Address("/s", "a", "tcp://10.0.0.1:1", "k").is_far("a")
    assert not Address("/s").is_far("b"), "there is no port"


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("localhost", False),
        ("10.0.0.1", True),
        ("fd00::1", True),
    ],
)
def test_nothing_is_opened_for_others_where_there_are_none(host, reached):
    assert others_reach(host) is reached


# -- what was heard -------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.data())
def test_a_message_that_is_missing_is_noticed_with_the_next_one(n, data):
    gone = data.draw(st.sets(st.integers(0, n - 1)))
    heard = Reception()
    for number in sorted(set(range(n + 1)) - gone):
        assert heard.note(7, number) is (number == 0 or number - 1 not in gone)


def test_another_connection_may_hide_what_the_one_before_lost():
    heard = Reception()
    assert heard.note(7, 0)
    assert not heard.note(8, 0)
    assert heard.note(8, 1)


def test_an_engine_is_gone_once_until_it_is_heard_again(monkeypatch):
    monkeypatch.undo()
    heard = Reception()
    assert [heard.look() for _ in range(NEW_BEATS)] == [False] * NEW_BEATS, "it has to connect first"
    for _ in range(3):
        assert [heard.look() for _ in range(SILENT_BEATS + 3)] == [i == SILENT_BEATS - 1 for i in range(7)]
        assert heard.silent
        heard.note(7, 0)
        assert not heard.silent


# -- over sockets ---------------------------------------------------------------------------------------


async def test_events_arrive_in_order_and_their_streams_know_whose_they_are(puller, pusher):
    key = introduce(puller, pusher)
    for i in range(100):
        assert not pusher.send([(puller.address, Delta("a", str(i), (1,)))])
    pusher.send([(puller.address, End("a", "stop", None, STATS))])
    events = await puller.read("a", 101)
    assert [event.text for event in events[:-1]] == [str(i) for i in range(100)]
    assert events[-1] == End("a", "stop", None, STATS)
    assert puller.inboxes["a"].source == key


async def test_an_engine_on_the_same_node_takes_the_unix_socket(puller):
    near = Pusher("0", host=HOST, node_id="a")
    assert near.meet(puller.address, known=True) == "", "it needs no key"
    assert not near.send([(puller.address, Delta("a", "text", (1,)))])
    assert await puller.texts("a", 1) == ["text"]
    assert puller.inboxes["a"].source == wire.LOCAL
    assert len(puller._engines) == 1
    near.close()


async def test_a_stranger_is_not_heard_until_it_is_admitted_and_then_nothing_is_missing(puller, pusher):
    assert not pusher.send([(puller.address, Delta("a", "text", (1,)))])
    with capture_logs() as logs:
        await until(lambda: [log["event"] for log in logs].count("engine_not_admitted") > 1)  # it tries again
    assert puller.inboxes["a"].take() == []
    puller.admit(pusher.meet(puller.address, known=True))
    assert await puller.texts("a", 1) == ["text"]


@pytest.mark.parametrize("how", ["plain", "own-keys", "false-server-key"])
async def test_nobody_else_gets_in(puller, pusher, how):
    introduce(puller, pusher)
    where = Address.parse(puller.address)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.linger = 0
        if how != "plain":
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = where.key.encode() if how == "own-keys" else zmq.curve_keypair()[0]
        news = stranger.get_monitor_socket()
        stranger.connect(where.endpoint)
        data = remote_wire._HEAD.pack(1, 0) + wire.encode("0", [Delta("a", "forged", (1,))])
        stranger.send(data, zmq.NOBLOCK)
        await until(lambda: news.poll(0) and recv_monitor_message(news)["event"] in SHUT_OUT)
        assert puller.inboxes["a"].take() == []
        stranger.disable_monitor()
        news.close()
    pusher.send([(puller.address, Delta("a", "true", (1,)))])
    assert await puller.texts("a", 1) == ["true"]


async def test_an_engine_that_has_nothing_to_say_is_heard_and_one_that_ended_is_not(puller, pusher, soon):
    key = introduce(puller, pusher)
    await until(lambda: puller._remote._engines[key]._next > 3 * remote_wire.SILENT_BEATS)
    await until(lambda: not puller.silent(key))  # at once, unless the machine is busy
    pusher.close()
    await until(lambda: puller.silent(key))
    assert set(puller.unheard) == {(key,)}, "of whom nothing was heard may be another engine's"


async def test_an_engine_that_comes_back_is_another_one_with_a_key_of_its_own(puller, pusher):
    introduce(puller, pusher)
    pusher.close()
    successor = Pusher("0", host=HOST, node_id="b")
    introduce(puller, successor)
    successor.send([(puller.address, Delta("a", "text", (1,)))])
    assert await puller.texts("a", 1) == ["text"]
    successor.close()


class Relay:
    """A link between two machines that can be cut: what is on its way then is lost."""

    def __init__(self, endpoint):
        self.to = endpoint.rsplit(":", 1)[1]
        self._writers, self.open, self.n_lost = [], True, 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass, HOST, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"tcp://{HOST}:{port}"
        return self

    async def _pass(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.to)
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                if self.open:
                    writer.write(data)
                else:
                    self.n_lost += len(data)
        except OSError:
            pass
        finally:
            writer.close()

    def reset(self):
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def __aexit__(self, *error):
        self.reset()
        self._server.close()


@pytest.fixture
async def relay(puller):
    async with Relay(Address.parse(puller.address).endpoint) as relay:
        address = Address.parse(puller.address)
        relay.address = str(address._replace(endpoint=relay.endpoint))
        yield relay


def over(relay, puller, pusher):
    key = pusher.meet(relay.address, known=False)
    puller.admit(key)
    pusher.meet(relay.address, known=True)
    return key


async def test_what_was_lost_on_a_link_is_noticed_and_what_comes_later_is_whole(puller, pusher, relay):
    key = over(relay, puller, pusher)
    pusher.send([(relay.address, Delta("a", "one", (1,)))])
    assert await puller.texts("a", 1) == ["one"]
    relay.open = False
    pusher.send([(relay.address, Delta("a", "two" * 20_000, (1,)))])  # more than many beats
    await until(lambda: relay.n_lost > 60_000)
    relay.open = True
    relay.reset()
    await until(lambda: puller.unheard)
    assert puller.unheard == [(key, "")], "it may be the first of any stream"
    pusher.send([(relay.address, Delta("later", "text", (1,)))])
    assert await puller.texts("later", 1) == ["text"]


async def test_a_link_that_is_cut_is_noticed_and_heals_without_a_new_introduction(
    puller, pusher, relay, soon
):
    key = over(relay, puller, pusher)
    pusher.send([(relay.address, Delta("a", "one", (1,)))])
    await puller.read("a", 1)
    relay.open = False
    await until(lambda: (key,) in puller.unheard)
    relay.open = True
    relay.reset()
    await until(lambda: not puller.silent(key))
    pusher.send([(relay.address, Delta("b", "text", (1,)))])
    assert await puller.texts("b", 1) == ["text"]


@pytest.fixture
def nobody():
    """An address where no ingress is."""
    return str(Address("/none", "a", f"tcp://{HOST}:1", zmq.curve_keypair()[0].decode()))


async def test_an_ingress_that_cannot_be_reached_fills_its_backlog_and_holds_up_no_other(
    puller, pusher, nobody
):
    introduce(puller, pusher)
    n = next(i for i in range(10 * MAX_BACKLOG) if pusher.send([(nobody, Delta("b", str(i), (1,)))]))
    assert MAX_BACKLOG <= n <= MAX_BACKLOG + remote_wire.MAX_QUEUED + 2
    assert pusher.send([(nobody, Delta("b", "x", (1,))), (puller.address, Delta("a", "text", (1,)))]) <= {"b"}
    assert await puller.texts("a", 1) == ["text"]


@pytest.mark.parametrize("backlog", [0, 3 * remote_wire.MAX_QUEUED])
async def test_an_ingress_that_keeps_no_touch_is_forgotten(monkeypatch, pusher, nobody, backlog):
    pusher.meet(nobody, known=True)
    for _ in range(backlog):
        assert not pusher.send([(nobody, Delta("a", "x", (1,)))])
    assert pusher.n_readers == 1
    with monkeypatch.context() as patched:
        patched.setattr(remote_wire, "UNUSED_BEATS", 4)
        await until(lambda: pusher.n_readers == 0)
    assert not pusher.send([(nobody, Delta("a", "x", (1,)))]), "it gets another connection"
    assert pusher.n_readers == 1


async def test_last_words_get_out(puller, pusher):
    introduce(puller, pusher)
    for i in range(50):
        pusher.send([(puller.address, Delta("a", str(i), (1,)))])
    closing = asyncio.get_running_loop().run_in_executor(None, pusher.close)
    assert (await puller.texts("a", 50))[-1] == "49"
    await closing
