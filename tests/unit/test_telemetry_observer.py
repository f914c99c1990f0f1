"""A tick log that cannot be written is given up; the metrics go on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from telemetry_records import make_collector, make_tick

from cobali_ray.telemetry.log import TickLog
from cobali_ray.telemetry.observer import Telemetry

FULL = Path("/dev/full")
needs_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def closed_log(folder):
    log = TickLog(folder / "ticks.jsonl")
    log.close()
    return log


@pytest.fixture(
    params=[
        pytest.param(lambda folder: TickLog(FULL), marks=needs_a_full_disk, id="disk-full"),
        pytest.param(closed_log, id="closed"),
    ]
)
def broken(request, tmp_path):
    with closing(request.param(tmp_path)) as log:
        yield log


def n_ticks(telemetry):
    return telemetry.collector.snapshot().histogram("tick_seconds").count


def test_it_is_said_once_and_ticks_are_counted_on(broken):
    telemetry = Telemetry(make_collector(), broken)
    with capture_logs() as logs:
        for tick_id in range(3):
            telemetry.on_tick(make_tick(tick_id))
    assert n_ticks(telemetry) == 3
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("tick_log_stopped", "error")
    assert (line["setting"], line["file"]) == ("log_ticks", str(broken.path))
    with pytest.raises(ValueError, match="closed"):
        broken.write(make_tick())


def test_a_log_of_events_that_is_full_as_well_harms_nothing(broken):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = structlog.get_config()
    structlog.configure(processors=[full])
    try:
        telemetry = Telemetry(make_collector(), broken)
        telemetry.on_tick(make_tick(0))
        telemetry.on_tick(make_tick(1))
    finally:
        structlog.configure(**before)
    assert n_ticks(telemetry) == 2


def test_a_log_that_works_gets_every_tick(tmp_path):
    with closing(TickLog(tmp_path / "ticks.jsonl")) as log:
        telemetry = Telemetry(make_collector(), log)
        for tick_id in range(3):
            telemetry.on_tick(make_tick(tick_id))
    assert n_ticks(telemetry) == (tmp_path / "ticks.jsonl").read_bytes().count(b"\n") == 3
