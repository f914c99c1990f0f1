"""A short fuzz of all routes beside plain streams; `make fuzz` is the long one."""

import asyncio

import pytest
from rich.progress import Progress

from tests.fuzz import __main__ as fuzzing

pytestmark = pytest.mark.ray


@pytest.mark.thorough
async def test_no_request_harms_the_server_or_its_streams(server, monkeypatch):
    monkeypatch.setattr(fuzzing, "N_STREAMS", 4)  # of eight slots
    with Progress(disable=True) as progress:
        report = await fuzzing.fuzz(server.url, 5.0, 7, progress)
    wrong = [text for text in fuzzing.verdict(report) if "gaps over" not in text]
    assert wrong == []
    # On a busy machine gaps grow, and single ones are anybody's; a frozen event loop shows in many.
    assert report["beside"]["p99_s"] < max(fuzzing.LONG_GAP_S, 5 * report["alone"]["p99_s"])
    assert report["requests"] > 5
    assert {"200", "400"} <= set(report["statuses"])
    assert await asyncio.wait_for(server.is_ready(), 5)
