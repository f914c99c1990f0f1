"""Gaps between device work: from spans, from tick records, from Nsight's SQLite export."""

import sqlite3
from contextlib import closing

import orjson
import pytest

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import ConfigError
from cobali_ray.telemetry.log import TickLog
from cobali_ray.testing import FakeClock
from cobali_workloads.inside.gap_sources import read_nsight, read_tick_log
from cobali_workloads.inside.gaps import Busy, Gap, GapStats, gaps_of, passes_of
from cobali_workloads.inside.runs import greedy_requests
from cobali_workloads.offline import run_offline


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([Busy(0, 1)], [], id="one-span-has-no-neighbour"),
        pytest.param([Busy(0, 1), Busy(1, 2)], [], id="touching"),
        pytest.param([Busy(0, 1), Busy(1.5, 2)], [Gap(1, 0.5)], id="apart"),
        pytest.param([Busy(3, 4), Busy(0, 1)], [Gap(1, 2)], id="out-of-order"),
        pytest.param([Busy(0, 5), Busy(1, 2), Busy(6, 7)], [Gap(5, 1)], id="inner-span-ends-nothing"),
        pytest.param([Busy(0, 1), Busy(9, 10, after_idle=True)], [], id="idle-is-nobodys-gap"),
    ],
)
def test_gaps_of(spans, expected):
    assert gaps_of(spans) == expected


def test_statistics_of_known_gaps():
    spans = [Busy(10.0 * i, 10.0 * (i + 1) - i) for i in range(1, 6)]  # gaps of 1, 2, 3, 4
    stats = GapStats.of(spans)
    assert (stats.n, stats.mean_s, stats.median_s, stats.max_s) == (4, 2.5, 2.5, 4)
    assert (stats.p75_s, stats.p90_s, stats.p95_s) == pytest.approx((3.25, 3.7, 3.85))
    assert stats.busy_share == pytest.approx(35 / 45)


def test_the_tick_log_says_what_the_records_say(tmp_path):
    path = tmp_path / "ticks.jsonl"
    backend = ScriptedBackend(n_slots=2, n_ctx_slot=64, n_batch=64)
    limits = EngineLimits(n_slots=2, n_ctx_slot=64, n_cells=128, token_budget=64, prefill_chunk=32)
    ticks = []
    with closing(TickLog(path)) as log:

        def note(stats):
            ticks.append(stats)
            log.write(stats)

        clock = FakeClock(step_s=0.001)
        requests = greedy_requests([[1, 2, 3]] * 3, max_tokens=4)
        run_offline(lambda sink: Engine(backend, limits, clock, sink), requests, on_tick=note)
    with path.open("ab") as file:
        file.write(b'{"tick_id": 99, "cut')
    found = read_tick_log(path)
    assert found == passes_of(ticks)
    assert len(gaps_of(found)) == len(ticks) - 1 > 3


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"hello\n", id="no-json"),
        pytest.param(orjson.dumps({"a": 1}) + b"\n", id="other-json"),
    ],
)
def test_a_file_that_is_no_tick_log_is_refused(tmp_path, content):
    path = tmp_path / "ticks.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_tick_log(path)


@pytest.fixture
def nsight(tmp_path):
    """Two devices; on device 0 three kernels of which two overlap, on device 1 one."""
    path = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start INTEGER, end INTEGER, deviceId INTEGER, demangledName INTEGER, shortName INTEGER);
            INSERT INTO StringIds VALUES (1, 'mul_mat_q<float>'), (2, 'rms_norm_f32');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
                (2000, 3000, 0, 2, 2), (1000, 1500, 0, 1, 1), (1400, 1600, 0, 1, 1), (500, 900, 1, 1, 1);
            """
        )
    return path


def test_kernels_by_device(nsight):
    kernels = read_nsight(nsight)
    assert set(kernels) == {0, 1}
    assert [gap.length_s for gap in gaps_of(kernels[0])] == pytest.approx([400e-9])
    assert len(kernels[1]) == 1


def test_kernels_by_name(nsight):
    assert {device: len(found) for device, found in read_nsight(nsight, kernel="mul_mat").items()} == {
        0: 2,
        1: 1,
    }


def test_a_file_without_kernels_is_refused(nsight, tmp_path):
    with pytest.raises(ConfigError, match="no kernel"):
        read_nsight(nsight, kernel="absent")
    other = tmp_path / "other.sqlite"
    other.write_text("no database")
    with pytest.raises(ConfigError, match="SQLite"):
        read_nsight(other)
    with pytest.raises(ConfigError, match="no file"):
        read_nsight(tmp_path / "absent")
