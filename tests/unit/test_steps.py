"""The steps of a start with their seconds, and whom it listens to meanwhile."""

import io
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import orjson
import pytest

from cobali_ray.actors import node, serving
from cobali_ray.actors.output import JsonLines, Steps
from cobali_ray.errors import CobaliError
from cobali_ray.settings import EngineSettings
from cobali_ray.signals import on_signals


def test_each_step_that_is_done_is_an_event_with_its_seconds():
    now, out = [5.0], io.StringIO()
    steps = Steps(JsonLines(out), lambda: now[0])
    with steps.step("starting Ray"):
        now[0] += 2.5
    with pytest.raises(ZeroDivisionError), steps.step("starting Serve"):
        now[0] += 1 / 0
    now[0] += 1
    (line,) = map(orjson.loads, out.getvalue().splitlines())
    assert (line["event"], line["step"], line["seconds"]) == ("start_step", "starting Ray", 2.5)
    assert steps.seconds == 3.5


@pytest.mark.parametrize(("fast", "listens"), [(True, "127.0.0.1"), (False, "0.0.0.0")])
def test_serve_gets_the_port_that_was_asked_for_though_a_url_has_none(monkeypatch, tmp_path, fast, listens):
    asked = {}
    monkeypatch.setattr(serving, "_start_serve", lambda **options: asked.update(options))
    monkeypatch.setattr(serving, "deploy", lambda *_, **__: None)
    monkeypatch.setattr(serving, "wait_loaded", lambda *_: None)
    monkeypatch.setattr(serving, "_wait_ready", lambda *_: None)
    output = JsonLines(io.StringIO())
    server = serving._ServerRun(None, output, None, tmp_path, host="0.0.0.0", port=80)
    server._start_app(EngineSettings(), Steps(output), fast=fast)
    assert asked == {"host": listens, "port": 80}


def test_a_server_whose_draining_is_skipped_ends_at_once(monkeypatch, tmp_path):
    """Ray's code would look for what was ended for ten seconds more, and complain of it."""
    (own := tmp_path / "own").mkdir()
    output = JsonLines(out := io.StringIO())
    server = serving._ServerRun(lambda _: EngineSettings(), output, None, own, host="::1", port=1)
    monkeypatch.setattr(server, "_start", lambda *_: None)
    monkeypatch.setattr(server, "_until_stopped", lambda settings, _: settings)
    for name, value in (("_model_facts", {}), ("logs_folder", tmp_path), ("_n_open", 1), ("_drain", False)):
        monkeypatch.setattr(serving, name, lambda *_, value=value: value)
    monkeypatch.setattr(serving, "_shut_down", lambda *_, **__: None)
    monkeypatch.setattr(serving.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        server.serve(SimpleQueue(), threading.Event())
    assert ended.value.code == 0
    assert orjson.loads(out.getvalue().splitlines()[-1])["event"] == "stopped"
    assert not own.exists()


def test_a_signal_ends_the_download_of_another_model(tmp_path):
    wishes, output = SimpleQueue(), JsonLines(io.StringIO())

    def read(progress):
        progress("downloading", 0.1)
        return EngineSettings()

    server = serving._ServerRun(read, output, None, tmp_path, host="::1", port=1)
    assert server._reread(wishes) == EngineSettings()
    wishes.put(serving.SignalAction.STOP)
    with pytest.raises(CobaliError, match="a signal came before"):
        server._reread(wishes)


def test_a_signal_between_the_start_and_its_end_is_not_lost():
    """The thread that watches during the start has stopped looking, and nobody waits for the signal yet."""
    stop, broken_off = threading.Event(), threading.Event()
    with on_signals(lambda _: stop.set()), serving._watching_signals(broken_off.set):
        signal.raise_signal(signal.SIGINT)
        assert broken_off.wait(60)
        stop.clear()
        signal.set_wakeup_fd(-1)
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()


def test_a_signal_at_the_end_of_the_start_is_acted_on_before_anything_else_happens():
    broken_off = threading.Event()
    with on_signals(lambda _: None), serving._watching_signals(broken_off.set):
        signal.raise_signal(signal.SIGTERM)
    assert broken_off.is_set()


@pytest.mark.parametrize(("before", "heard"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_the_server_unless_it_was_told_to_stay(before, heard):
    hangups, theirs = threading.Event(), signal.signal(signal.SIGHUP, before)
    try:
        with on_signals(lambda _: hangups.set(), serving._stopping()):
            broken_off = threading.Event()
            with serving._watching_signals(broken_off.set):
                signal.raise_signal(signal.SIGHUP)
                assert broken_off.wait(60 if heard else 0) == heard
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, theirs)
    assert hangups.is_set() == heard


def test_a_disk_that_fills_is_told_each_time_until_somebody_wishes_for_something(monkeypatch):
    wishes, out = SimpleQueue(), io.StringIO()
    looks = iter([False, True, True, False, True])

    def is_full(_):
        full = next(looks, None)
        if full is None:
            wishes.put(serving.SignalAction.STOP)
        return bool(full)

    monkeypatch.setattr(serving, "is_full", is_full)
    wish = serving._next_wish(wishes, JsonLines(out), Path("/tmp/ray/logs"), look_s=0.0)
    assert wish is serving.SignalAction.STOP
    lines = [orjson.loads(line) for line in out.getvalue().splitlines()]
    assert [line["level"] for line in lines] == ["error", "error"]
    assert all("/tmp/ray/logs is full" in line["detail"] and "TMPDIR" in line["detail"] for line in lines)


def test_what_counts_as_full(monkeypatch, tmp_path):
    assert not node.is_full(tmp_path)
    assert not node.is_full(tmp_path / "gone")
    monkeypatch.setattr(node, "FULL_BYTES", 1 << 62)
    assert node.is_full(tmp_path)
