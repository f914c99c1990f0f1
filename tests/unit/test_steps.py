"""The steps of a start with their seconds, and whom it listens to meanwhile."""

import io
import signal
import threading

import orjson
import pytest

from cobali_ray.actors import serving
from cobali_ray.actors.output import JsonLines
from cobali_ray.actors.steps import Steps
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


def test_a_signal_between_the_start_and_its_end_is_not_lost():
    """The thread that watches during the start has stopped looking, and nobody waits for the signal yet."""
    stop, broken_off = threading.Event(), threading.Event()
    with on_signals(lambda _: stop.set()), serving._watching_signals(broken_off.set):
        signal.raise_signal(signal.SIGINT)
        assert broken_off.wait(10)
        stop.clear()
        signal.set_wakeup_fd(-1)
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()


@pytest.mark.parametrize(("before", "heard"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_the_server_unless_it_was_told_to_stay(before, heard):
    hangups, theirs = threading.Event(), signal.signal(signal.SIGHUP, before)
    try:
        with on_signals(lambda _: hangups.set(), serving._stopping()):
            broken_off = threading.Event()
            with serving._watching_signals(broken_off.set):
                signal.raise_signal(signal.SIGHUP)
                assert broken_off.wait(10 if heard else 0) == heard
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, theirs)
    assert hangups.is_set() == heard
