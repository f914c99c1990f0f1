"""Viewers against none: the numbers, the verdict, and a server that shows nothing."""

import asyncio

import pytest

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.viewers import ALONE, WATCHED, figures_of, report_of, watching
from cobali_workloads.load.timeline import RequestTimeline
from cobali_workloads.report.rounds import Rounds

CONFIG = {"viewers": 10, "streams": 2, "tokens": 3, "rounds": 2}


def answer(*times, **said):
    return RequestTimeline(due_s=0, sent_s=0, deltas_s=times, ended_s=times[-1], n_output=len(times), **said)


def test_throughput_counts_all_streams_and_gaps_lie_within_one():
    figures = figures_of([answer(1.0, 1.25, 1.5), answer(1.5, 1.75, 2.0)])
    assert [figures[name] for name in ("output_tokens_per_s", "itl_p50_s", "itl_p99_s")] == [3.0, 0.25, 0.25]


def test_a_stream_that_did_not_finish_is_no_measurement():
    with pytest.raises(ConfigError, match="a stream failed: it broke off"):
        figures_of([answer(1.0), answer(1.0, 2.0, status="failed", error="it broke off")])


@pytest.mark.parametrize(
    ("watched", "ratios", "word"),
    [
        pytest.param([99.0, 198.0], ["0.990", "0.990", "0.990"], "reaches", id="cheap"),
        pytest.param([50.0, 200.0], ["0.500", "1.000", "0.750"], "misses", id="dear"),
    ],
)
def test_the_verdict_is_the_median_of_the_ratios_within_rounds(watched, ratios, word):
    rounds = Rounds()
    rest = {"itl_p50_s": 0.01, "itl_p99_s": 0.02, "seen_bytes_per_s": 5e3}
    rounds.figures = {
        ALONE: [{"output_tokens_per_s": rate} | rest for rate in (100.0, 200.0)],
        WATCHED: [{"output_tokens_per_s": rate} | rest for rate in watched],
    }
    _, verdict = report_of(rounds, command="x", config=CONFIG).tables
    assert [row[1] for row in verdict.rows] == ratios
    assert word in verdict.note


async def test_a_server_that_shows_no_ticks_is_named():
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConfigError, match="401 Unauthorized"):
            async with watching(url, 2):
                pass
