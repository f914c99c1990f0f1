"""`cobali bench restart`: what it makes of the moments, and how it finds the engine."""

from __future__ import annotations

import math
import os

from cobali_ray.bench.commands.restart import _report
from cobali_ray.bench.servers.restart import MOMENTS, engine_pid


def test_the_report_has_a_row_per_moment():
    found = [{name: float(i + j) for j, name in enumerate(MOMENTS)} for i in range(11)]
    report = _report("cobali bench restart", found)
    assert [row[0] for row in report.tables[0].rows] == list(MOMENTS.values())
    assert report.tables[0].rows[0][1:] == ("5.00", "9.00", "0.00", "10.00")
    assert report.samples["answer_s"] == [float(i + 4) for i in range(11)]
    assert not any(math.isnan(value) for one in found for value in one.values())


def test_where_no_engine_runs_none_is_found():
    assert engine_pid(os.getpid()) is None
