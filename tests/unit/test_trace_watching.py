"""`cobali trace` keeps what it recorded, whatever becomes of the server or of the one who watches."""

from functools import partial

import httpx2
import pytest
from test_trace import FakeServer, Shown, busy
from typer.testing import CliRunner

from cobali_ray.cli import app as cli
from cobali_ray.errors import ConfigError
from cobali_workloads.commands import trace as command
from cobali_workloads.trace import watching

TROUBLES = [
    pytest.param(httpx2.Response(503), id="503"),
    pytest.param(httpx2.ConnectError("refused"), id="no-server"),
    pytest.param(httpx2.RemoteProtocolError("cut off"), id="cut-off"),
]


class Moody(FakeServer):
    """Ticks before each answer, and answers the questions named in `moods` with something else."""

    def __init__(self, **moods):
        super().__init__()
        self.moods = {int(number.removeprefix("q")): mood for number, mood in moods.items()}

    def __call__(self, request):
        mood = None if request.url.path == "/ready" else self.moods.get(len(self.asked))
        if mood is not None:
            self.asked.append(dict(request.url.params))
            if isinstance(mood, httpx2.Response):
                return mood
            raise mood
        if self.asked and request.url.path != "/ready":
            self.setup.tick()
        return super().__call__(request)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.pftrace"


@pytest.fixture
def watch(monkeypatch, out):
    real, watch = httpx2.Client, command._watch

    def run(server, *options):
        def client(**kwargs):
            return real(transport=httpx2.MockTransport(server), **kwargs)

        slept_s = [0.0]
        in_no_time = partial(watch, now=lambda: sum(slept_s), sleep=slept_s.append)
        monkeypatch.setattr(command, "_watch", in_no_time)
        monkeypatch.setattr(command.httpx2, "Client", client)
        monkeypatch.setattr(command, "POLL_S", 0.01)
        return CliRunner().invoke(cli, ["trace", "--seconds", "0.1", "-o", str(out), *options])

    return run


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_server_that_is_away_for_a_while_is_asked_again(trouble):
    server = Moody(q2=trouble, q3=trouble)
    watcher = server.watcher()
    watcher.begin()
    assert [watcher.look() for _ in range(4)] == [True, False, False, True]
    assert watcher.recording.n_ticks == 2


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_new_engine_that_is_gone_again_at_once_loses_none_of_its_ticks(trouble):
    server = Moody(q3=trouble)
    watcher = server.watcher()
    watcher.begin()
    assert watcher.look()
    server.setup = busy()
    n_ticks = len(server.setup.run())
    assert not watcher.look()
    assert watcher.look()
    assert watcher.recording.n_ticks == 1 + n_ticks


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        pytest.param(httpx2.Response(401), "--key", id="key"),
        pytest.param(httpx2.Response(404), "answers 404", id="another-server"),
        pytest.param(httpx2.Response(503), "--url: .*answers 503", id="loading"),
        pytest.param(httpx2.ConnectError("refused"), "--url", id="no-server"),
    ],
)
def test_before_anything_was_recorded_it_is_an_error(trouble, words):
    with pytest.raises(ConfigError, match=words):
        watching.begin([Moody(q0=trouble).watcher()])


AWAY = {f"q{number}": httpx2.ConnectError("refused") for number in range(3, 2000)}


@pytest.mark.parametrize(
    ("moods", "seconds", "error"),
    [
        pytest.param(AWAY, "1", None, id="the-server-never-comes-back"),
        pytest.param({"q3": KeyboardInterrupt()}, "60", None, id="ctrl-c"),
        pytest.param({"q3": httpx2.Response(401)}, "60", "--key", id="an-error"),
    ],
)
def test_whatever_ends_the_watch_what_there_is_is_written(watch, out, moods, seconds, error):
    result = watch(Moody(**moods), "--seconds", seconds)
    if error is None:
        assert (result.exit_code, "2 ticks" in result.output) == (0, True), result.output
    else:
        assert isinstance(result.exception, ConfigError)
        assert error in str(result.exception)
    assert len(Shown(out).slices["cobali_ray tiny, engine 0", "host: tick"]) > 2


def test_ctrl_c_before_the_first_answer_writes_nothing(watch, out):
    assert watch(Moody(q0=KeyboardInterrupt())).exit_code != 0
    assert not out.exists()


def test_a_place_that_cannot_be_written_is_said_before_the_server_is_asked(watch, tmp_path):
    server = Moody()
    result = watch(server, "-o", str(tmp_path / "nowhere" / "out.pftrace"))
    assert isinstance(result.exception, ConfigError)
    assert "cannot write" in str(result.exception)
    assert not server.asked


def test_looking_whether_it_can_be_written_leaves_no_trace(watch, tmp_path, out):
    nobody = httpx2.ConnectError("refused")
    assert isinstance(watch(Moody(q0=nobody)).exception, ConfigError)
    assert not out.exists()
    out.write_bytes(b"an older trace")
    assert isinstance(watch(Moody(q0=nobody)).exception, ConfigError)
    assert out.read_bytes() == b"an older trace"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    assert watch(Moody(), "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert len(Shown(tmp_path / "target").slices) > 0


@pytest.mark.parametrize(
    ("exported", "options", "sent"),
    [
        pytest.param({"OPENAI_API_KEY": "theirs"}, (), None, id="openai-s-key-is-for-openai"),
        pytest.param({"COBALI_KEY": "ours"}, (), "Bearer ours", id="exported-for-this"),
        pytest.param({"COBALI_KEY": "ours"}, ("--key", "said"), "Bearer said", id="said"),
    ],
)
def test_only_a_key_that_was_meant_is_sent(watch, monkeypatch, exported, options, sent):
    seen = set()

    class Listening(Moody):
        def __call__(self, request):
            seen.add(request.headers.get("authorization"))
            return super().__call__(request)

    for name in ("OPENAI_API_KEY", "COBALI_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    assert watch(Listening(), *options).exit_code == 0
    assert seen == {sent}


class Several(FakeServer):
    """Has three engines: one at work, one that comes while it is watched, one that never does."""

    def __init__(self):
        super().__init__()
        self.servers = {"big-0": Moody(), "big-1": Moody(q0=httpx2.Response(503)), "rare": FakeServer()}
        self.servers["rare"].status = 503

    def __call__(self, request):
        if request.url.path == "/ready":
            return httpx2.Response(503, json={"engines": [{"engine_id": name} for name in self.servers]})
        return self.servers[request.url.params["engine"]](request)


@pytest.mark.parametrize("options", [(), ("--engine", "big-0")], ids=["all", "one"])
def test_all_engines_are_watched_or_the_one_that_was_named(watch, out, options):
    server = Several()
    assert watch(server, *options).exit_code == 0
    assert {name for name, one in server.servers.items() if one.asked} == (
        {"big-0"} if options else set(server.servers)
    )
    shown = Shown(out)
    rows = [name for uuid, name in shown.names.items() if uuid not in shown.parents]
    assert rows == ["cobali_ray tiny, engine 0"] * (1 if options else 2)


def test_if_none_of_the_engines_is_there_it_is_said(watch):
    server = Several()
    for one in server.servers.values():
        one.status = 503
    server.servers["big-0"].moods = server.servers["big-1"].moods = {}
    result = watch(server)
    assert isinstance(result.exception, ConfigError)
    assert "answers 503" in str(result.exception)


def test_a_server_that_names_no_engines_has_one(watch, out):
    server = Moody()
    server.ready = {}
    assert watch(server).exit_code == 0
    assert {params.get("engine") for params in server.asked} == {None}
    assert len(Shown(out).slices["cobali_ray tiny, engine 0", "host: tick"]) > 2
