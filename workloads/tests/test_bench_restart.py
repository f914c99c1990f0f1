"""`cobali bench restart`: what it makes of the moments, and how it finds the engine."""

from __future__ import annotations

import math
import os

import pytest

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.restart import _report
from cobali_workloads.load.reply import Exchange
from cobali_workloads.servers.restart import MOMENTS, engine_pid, pause_end_s


def test_the_report_has_a_row_per_moment():
    found = [{name: float(i + j) for j, name in enumerate(MOMENTS)} for i in range(11)]
    report = _report("cobali bench restart", found)
    assert [row[0] for row in report.tables[0].rows] == list(MOMENTS.values())
    assert report.tables[0].rows[0][1:] == ("5.00", "9.00", "0.00", "10.00")
    assert report.samples["answer_s"] == [float(i + 4) for i in range(11)]
    assert not any(math.isnan(value) for one in found for value in one.values())


def reply(*arrivals, end=b"data: [DONE]\n\n"):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    chunk = b'data: {"choices": [{"index": 0, "text": "x", "finish_reason": null}]}\n\n'
    pieces = [(0.0, head), *[(at_s, chunk) for at_s in arrivals], (9.0, end)]
    return Exchange(due_s=0.0, sent_s=0.0, closed_s=9.0, pieces=pieces)


def test_a_stream_goes_on_where_its_longest_pause_is_over():
    assert pause_end_s(reply(1.0, 1.1, 2.5, 2.6)) == 2.5


def test_a_stream_that_fails_is_no_figure():
    failed = b'data: {"error": {"message": "it died", "code": "engine_died"}}\n\n'
    with pytest.raises(ConfigError, match="died"):
        pause_end_s(reply(1.0, 1.1, end=failed))


def test_where_no_engine_runs_none_is_found():
    assert engine_pid(os.getpid()) is None
