"""Log lines are JSON with numbers and names, never what a client wrote."""

from __future__ import annotations

import io
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import pytest
import structlog
from structlog.testing import capture_logs
from telemetry_records import make_collector, make_tick

from cobali_ray.telemetry.log import TICK_FIELDS, TickLog, configure_logging

FULL = Path("/dev/full")


@pytest.fixture
def out():
    """Return where log lines go; structlog's configuration is put back afterwards."""
    before = structlog.get_config()
    yield io.StringIO()
    structlog.configure(**before)


def lines(out):
    return [orjson.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("terminal", [False, True], ids=["json", "readable"])
def test_lines_are_readable_on_a_terminal_and_no_traceback_shows_local_variables(out, monkeypatch, terminal):
    monkeypatch.setattr(out, "isatty", lambda: terminal, raising=True)
    configure_logging(stream=out)

    def fail(prompt):
        raise ValueError(len(prompt))

    try:
        fail("what the client" + " wrote")
    except ValueError:
        structlog.get_logger().exception("tick_failed")
    assert "ValueError" in out.getvalue()
    assert "what the client wrote" not in out.getvalue()
    if terminal:
        with pytest.raises(orjson.JSONDecodeError):
            lines(out)
    else:
        assert lines(out)[0]["exception"][0]["exc_type"] == "ValueError"


@pytest.mark.parametrize("fails", ["write", "flush"])
def test_a_line_that_a_full_disk_does_not_take_is_lost_and_harms_nobody(out, monkeypatch, fails):
    def full(*_):
        raise OSError(28, "No space left on device")

    configure_logging(stream=out)
    log = structlog.get_logger()
    with monkeypatch.context() as disk:
        disk.setattr(out, fails, full, raising=True)
        log.info("lost")
    log.info("kept")
    assert lines(out)[-1]["event"] == "kept"


def test_level_filters(out):
    configure_logging(level="warning", stream=out)
    structlog.get_logger().info("hidden")
    assert out.getvalue() == ""
    structlog.get_logger().warning("seen", odd=object())
    assert lines(out)[0]["event"] == "seen"


def test_loggers_made_earlier_follow_the_configuration(out):
    logger = structlog.get_logger()
    configure_logging(stream=io.StringIO())
    logger.info("first")
    configure_logging(stream=out)
    logger.info("second")
    assert [line["event"] for line in lines(out)] == ["second"]


def test_every_line_says_what_it_is_about_whichever_thread_writes_it(out):
    configure_logging(stream=out, about={"engine_id": "7"})
    thread = threading.Thread(target=lambda: structlog.get_logger().info("from a thread"))
    thread.start()
    thread.join()
    structlog.get_logger().info("its own word", engine_id="8")
    assert [line["engine_id"] for line in lines(out)] == ["7", "8"]


@pytest.mark.parametrize(
    "gaps_s",
    [[0.01, 0.02], np.array([0.01, 0.02]), np.array([0.01, 9.0, 0.02])[::2], ()],
    ids=["list", "array", "strided-array", "none"],
)
def test_tick_log(tmp_path, gaps_s):
    path = tmp_path / "ticks.jsonl"
    at = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    with closing(TickLog(path, "7", utc_now=lambda: at)) as log:
        log.write(make_tick(1, gaps_s=gaps_s))
        assert path.read_bytes().count(b"\n") == 1, "a line is there before the file is closed"
        log.write(make_tick(2, gaps_s=gaps_s))
    first, second = (orjson.loads(line) for line in path.read_bytes().splitlines())
    assert (first["tick_id"], second["tick_id"]) == (1, 2)
    assert first["timestamp"] == "2027-01-02T03:04:05Z"
    assert set(first) == {"timestamp", "engine_id", *TICK_FIELDS}
    assert first["engine_id"] == "7"
    assert first["gaps_s"] == pytest.approx(list(gaps_s))
    assert first["forward_s"] == 0.016


def test_tick_log_appends_and_takes_nothing_once_closed(tmp_path):
    path = tmp_path / "ticks.jsonl"
    for tick_id in (1, 2):
        log = TickLog(path)
        log.write(make_tick(tick_id))
        log.close()
        log.close()
        log.write(make_tick(3))
    assert [orjson.loads(line)["tick_id"] for line in path.read_bytes().splitlines()] == [1, 2]


def n_ticks(collector):
    return collector.snapshot().histogram("tick_seconds").count


def test_a_log_that_works_gets_every_tick(tmp_path):
    with closing(TickLog(tmp_path / "ticks.jsonl")) as log:
        collector = make_collector(tick_log=log)
        for tick_id in range(3):
            collector.on_tick(make_tick(tick_id))
    assert n_ticks(collector) == (tmp_path / "ticks.jsonl").read_bytes().count(b"\n") == 3


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("said", [True, False], ids=["said-once", "the-log-of-events-is-full-as-well"])
def test_a_log_on_a_full_disk_is_given_up_and_ticks_are_counted_on(out, said):
    def full(*_):
        raise OSError(28, "No space left on device")

    with closing(TickLog(FULL)) as log, capture_logs() as logs:
        if not said:
            structlog.configure(processors=[full])
        collector = make_collector(tick_log=log)
        for tick_id in range(3):
            collector.on_tick(make_tick(tick_id))
    assert n_ticks(collector) == 3
    facts = [(line["event"], line["log_level"], line["setting"], line["file"]) for line in logs]
    assert facts == [("tick_log_stopped", "error", "log_ticks", str(FULL))] * said
