"""`cobali bench viewers`: what people who watch the live ticks cost.

Against a running server without keys. A viewer here reads and throws away, so what it costs is the server's
alone. Small models and many slots are the hardest case: the shorter the ticks, the more records a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import numpy as np
import typer

from cobali_ray.command_line import DEFAULT_URL, Key, Url, address_of, bearer
from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, NRounds, Out, spell
from cobali_workloads.load.reply import timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender, closed_loop
from cobali_workloads.load.shape import Slo
from cobali_workloads.load.target import Job, Target, connect
from cobali_workloads.load.timeline import RequestTimeline, summarise
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

ALONE, WATCHED = "no viewers", "viewers"
WANTED = 0.98
"""Least throughput with viewers, as a share of that without."""
TEXT = "Tell me how a server shares one device among many requests."
TIMEOUT_S = 600.0


def viewers(
    url: Url = DEFAULT_URL,
    key: Key = None,
    viewers: Annotated[int, typer.Option(min=1, help="Viewers.")] = 10,
    streams: Annotated[int, typer.Option(min=1, help="Streams at once.")] = 16,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per stream.")] = 512,
    rounds: NRounds = 7,
    out: Out = OUT,
) -> None:
    """Run the same streams with and without viewers of `/debug/stream`, in turn."""
    target = connect("server", address_of(url), endpoint="chat", api_key=key)

    def run(n_viewers: int) -> Figures:
        return asyncio.run(measure(target, n_viewers=n_viewers, n_streams=streams, n_tokens=tokens))

    contenders = {ALONE: partial(run, 0), WATCHED: partial(run, viewers)}
    found = run_rounds(contenders, n_rounds=rounds, in_process=False)
    config: dict[str, object] = {"viewers": viewers, "streams": streams, "tokens": tokens, "rounds": rounds}
    deliver(report_of(found, command=spell("viewers", url=url, **config), config=config), out)


class ViewerClient(asyncio.Protocol):
    """One reader of `/debug/stream` that counts what it is sent."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Host": urlsplit(url).netloc, **bearer(key)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._request = f"GET /debug/stream HTTP/1.1\r\n{lines}\r\n".encode()
        self.n_bytes = 0
        self.head = b""
        self.answered = asyncio.Event()
        """Set by the first record, or by the end of the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count."""
        self.n_bytes += len(data)
        if not self.answered.is_set():
            self.head += data[:4096]
            if b"data: " in self.head:
                self.answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let nobody wait for what will not come."""
        del exc
        self.answered.set()


@asynccontextmanager
async def watching(
    url: str, n_viewers: int, key: str | None = None
) -> AsyncGenerator[list[ViewerClient], None]:
    """Keep viewers connected. Raises ConfigError where the server shows them nothing."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    transports, viewers = [], []
    try:
        for _ in range(n_viewers):
            transport, viewer = await loop.create_connection(
                lambda: ViewerClient(url, key), parts.hostname or "127.0.0.1", parts.port or 80
            )
            transports.append(transport)
            viewers.append(viewer)
        for viewer in viewers:
            await viewer.answered.wait()
            if b"data: " not in viewer.head:
                first = viewer.head.split(b"\r\n", 1)[0].decode("latin-1")
                raise ConfigError("--url", f"/debug/stream answered {first!r}")
        yield viewers
    finally:
        for transport in transports:
            transport.close()


async def measure(target: Target, *, n_viewers: int, n_streams: int, n_tokens: int) -> Figures:
    """Run all streams at once beside some viewers; return the run in numbers."""
    timer = LoopTimer()
    send = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S)
    async with watching(target.url, n_viewers, target.api_key) as found:
        before, began = sum(viewer.n_bytes for viewer in found), timer.now()
        # Distinct beginnings: every prompt is computed, in every run alike.
        jobs = [[Job(prompt=f"{i} {n_viewers} {began}: {TEXT}", n_output=n_tokens)] for i in range(n_streams)]
        exchanges = await closed_loop(send, jobs, timer)
        seen = sum(viewer.n_bytes for viewer in found) - before
    seen_per_s = seen / (timer.now() - began)
    return figures_of([timeline_of(exchange) for exchange in exchanges]) | {"seen_bytes_per_s": seen_per_s}


def figures_of(answers: list[RequestTimeline]) -> dict[str, float]:
    """Return throughput and gaps of the streams. Raises ConfigError where one did not finish."""
    if wrong := [answer for answer in answers if answer.status != "ok"]:
        raise ConfigError("--url", f"a stream {wrong[0].status}: {wrong[0].error}")
    return summarise(answers, Slo()).figures()


def report_of(rounds: Rounds, *, command: str, config: dict[str, object]) -> Report:
    """Say what viewers cost."""
    table = Table(
        title=f"Throughput with {config['viewers']} viewers and with none, {config['streams']} streams",
        columns=("", "output tok/s", "ITL p50, ms", "ITL p99, ms", "sent to viewers, kB/s"),
        note="Medians, with the least and the largest of the rounds in brackets.",
    )
    for name in (ALONE, WATCHED):
        gaps = [with_range([1e3 * s for s in rounds.values(name, f"itl_{p}_s")], "") for p in ("p50", "p99")]
        rates = with_range(rounds.values(name, "output_tokens_per_s"), "")
        table.rows.append((name, rates, *gaps, f"{rounds.median(name, 'seen_bytes_per_s') / 1e3:.0f}"))
    ratios = rounds.ratios(WATCHED, ALONE, "output_tokens_per_s")
    verdict = Table("Throughput with viewers over throughput without", ("round", "ratio"))
    verdict.rows += [(str(number), f"{ratio:.3f}") for number, ratio in enumerate(ratios, 1)]
    middle = float(np.median(ratios))
    verdict.rows.append(("median", f"{middle:.3f}"))
    verdict.note = f"Wanted: at least {WANTED}; the median {'reaches' if middle >= WANTED else 'misses'} it."
    return Report(
        name="viewers",
        title="What viewers of the live ticks cost",
        command=command,
        config=config,
        tables=[table, verdict],
        samples=rounds.as_json(),
        notes=rounds.notes(),
    )
