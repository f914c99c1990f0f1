"""Viewers against none: the numbers, the verdict, and a server that shows nothing."""

import asyncio

import pytest

from cobali_ray.bench.delivery import StreamClient
from cobali_ray.bench.rounds import Rounds
from cobali_ray.bench.viewers import ALONE, WATCHED, figures_of, report_of, watching
from cobali_ray.errors import ConfigError

CHUNK = b'data: {"id":"x","choices":[{"delta":{"content":"%d"}}]}\n\n'
CONFIG = {"viewers": 10, "streams": 2, "tokens": 3, "rounds": 2}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def finished(times, *, end=b"data: [DONE]\n\n"):
    pieces = [(at, CHUNK % i) for i, at in enumerate(times)]
    return StreamClient(b"", pieces=[*pieces, (times[-1], end)])


def test_throughput_counts_all_streams_and_gaps_lie_within_one():
    clients = [finished([1.0, 1.25, 1.5]), finished([7.0, 7.25, 7.5])]
    figures = figures_of(clients, 3, wall_s=2.0)
    assert figures == {"output_tokens_per_s": 3.0, "gap_p50_s": 0.25, "gap_p99_s": 0.25}


@pytest.mark.parametrize("end", [b"", b'data: {"error":{}}\n\ndata: [DONE]\n\n'], ids=["cut", "failed"])
def test_a_stream_that_did_not_finish_is_no_measurement(end):
    with pytest.raises(ConfigError, match="a stream failed"):
        figures_of([finished([1.0, 2.0], end=end)], 2, wall_s=1.0)


@pytest.mark.parametrize(
    ("watched", "ratios", "word"),
    [
        pytest.param([99.0, 198.0], ["0.990", "0.990", "0.990"], "reaches", id="cheap"),
        pytest.param([50.0, 200.0], ["0.500", "1.000", "0.750"], "misses", id="dear"),
    ],
)
def test_the_verdict_is_the_median_of_the_ratios_within_rounds(watched, ratios, word):
    rounds = Rounds()
    rest = {"gap_p50_s": 0.01, "gap_p99_s": 0.02, "seen_bytes_per_s": 5e3}
    rounds.figures = {
        ALONE: [{"output_tokens_per_s": rate} | rest for rate in (100.0, 200.0)],
        WATCHED: [{"output_tokens_per_s": rate} | rest for rate in watched],
    }
    _, verdict = report_of(rounds, command="x", config=CONFIG).tables
    assert [row[1] for row in verdict.rows] == ratios
    assert word in verdict.note


@pytest.mark.anyio
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
