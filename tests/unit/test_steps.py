"""What `cobali serve` says while it starts, and whom it listens to."""

import io
import re
import signal
import threading
from functools import partial
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from cobali_ray.actors import serving
from cobali_ray.actors.steps import Steps
from cobali_ray.settings import EngineSettings


@pytest.mark.parametrize("terminal", [False, True])
def test_each_step_is_a_line_with_its_seconds(terminal):
    now, out = [5.0], io.StringIO()
    steps = Steps(Console(file=out, force_terminal=terminal, width=60), lambda: now[0])
    with steps.step("starting Ray"):
        now[0] += 2.5
    with pytest.raises(ZeroDivisionError), steps.step("starting Serve"):
        now[0] += 1 / 0
    now[0] += 1
    steps.ready()
    said = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", out.getvalue())  # where the cursor goes
    lines = [line.strip() for line in said.splitlines() if line.strip().endswith(" s")]
    assert lines[-2:] == ["starting Ray               2.5 s", "ready after                3.5 s"]
    assert terminal == ("starting Serve ..." in out.getvalue())
    assert terminal or len(out.getvalue().splitlines()) == 2, "plain lines"


def test_a_signal_between_the_start_and_its_end_is_not_lost():
    """The thread that watches during the start has stopped looking, and nobody waits for the signal yet."""
    stop, broken_off = threading.Event(), threading.Event()
    with serving._on_signal(stop.set), serving._watching_signals(broken_off.set):
        signal.raise_signal(signal.SIGINT)
        assert broken_off.wait(10)
        stop.clear()
        signal.set_wakeup_fd(-1)
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()


def test_a_server_whose_keys_are_in_a_file_is_announced_though_it_tells_us_nothing(monkeypatch, capsys):
    refuses = httpx2.MockTransport(lambda _: httpx2.Response(401, json={"error": {}}))
    monkeypatch.setattr(serving.httpx2, "Client", partial(httpx2.Client, transport=refuses))
    settings = EngineSettings(model="builtin:scripted", n_ctx=64, api_keys_file=Path("keys.yaml"))
    serving._announce(Console(), "http://127.0.0.1:8000", settings)
    said = capsys.readouterr().out
    assert "scripted (64 tokens per request)" in said
    assert '"model": "scripted"' in said
