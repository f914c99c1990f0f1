"""What people who watch the live ticks cost: `python -m cobali_ray.bench.viewers`.

Against a running server without keys: the same streams with and without viewers of `/debug/stream`, in turn,
round by round. A viewer here reads and throws away, so what it costs is the server's alone. Small models and
many slots are the hardest case: the shorter the ticks, the more records a second.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from cobali_ray.bench.delivery import StreamClient, stream_request
from cobali_ray.bench.inprocess import OUT, deliver, with_range
from cobali_ray.bench.report import Report, Table
from cobali_ray.bench.rounds import Figures, Rounds, run_rounds
from cobali_ray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ALONE, WATCHED = "no viewers", "viewers"
WANTED = 0.98
"""Least throughput with viewers, as a share of that without."""
TEXT = "Tell me how a server shares one device among many requests."


class Viewer(asyncio.Protocol):
    """One reader of `/debug/stream` that counts what it is sent."""

    def __init__(self, url: str) -> None:
        host = urlsplit(url).netloc
        self._request = f"GET /debug/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        self.n_bytes = 0
        self.head = b""
        self.told = asyncio.Event()
        """Set by the first record, or by the end of the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count."""
        self.n_bytes += len(data)
        if not self.told.is_set():
            self.head += data[:4096]
            if b"data: " in self.head:
                self.told.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let nobody wait for what will not come."""
        del exc
        self.told.set()


@asynccontextmanager
async def watching(url: str, n_viewers: int) -> AsyncGenerator[list[Viewer], None]:
    """Keep viewers connected. Raises ConfigError where the server shows them nothing."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    transports, viewers = [], []
    try:
        for _ in range(n_viewers):
            transport, viewer = await loop.create_connection(
                lambda: Viewer(url), parts.hostname or "127.0.0.1", parts.port or 80
            )
            transports.append(transport)
            viewers.append(viewer)
        for viewer in viewers:
            await viewer.told.wait()
            if b"data: " not in viewer.head:
                first = viewer.head.split(b"\r\n", 1)[0].decode("latin-1")
                raise ConfigError("--url", f"/debug/stream answered {first!r}")
        yield viewers
    finally:
        for transport in transports:
            transport.close()


async def measure(url: str, *, n_viewers: int, n_streams: int, n_tokens: int) -> Figures:
    """Run all streams at once beside some viewers; return the run in numbers."""
    loop = asyncio.get_running_loop()
    async with watching(url, n_viewers) as viewers:
        before = sum(viewer.n_bytes for viewer in viewers)
        began = time.perf_counter()
        clients = []
        for i in range(n_streams):
            # Distinct beginnings: every prompt is computed, in every run alike.
            host, port, raw = stream_request(url, n_tokens, f"{i} {n_viewers} {began}: {TEXT}")
            _, client = await loop.create_connection(partial(StreamClient, raw), host, port)
            clients.append(client)
        for client in clients:
            await client.closed.wait()
        wall_s = time.perf_counter() - began
        seen = sum(viewer.n_bytes for viewer in viewers) - before
    return figures_of(clients, n_tokens, wall_s) | {"seen_bytes_per_s": seen / wall_s}


def figures_of(clients: Sequence[StreamClient], n_tokens: int, wall_s: float) -> dict[str, float]:
    """Return throughput and gaps of finished streams. Raises ConfigError where one did not finish."""
    gaps: list[float] = []
    for client in clients:
        wire = b"".join(data for _, data in client.pieces)
        if b"data: [DONE]" not in wire or b'"error":' in wire:
            raise ConfigError("--url", f"a stream failed: {wire[:200]!r} ... {wire[-300:]!r}")
        gaps += np.diff(client.chunk_arrivals()).tolist()
    p50, p99 = np.quantile(gaps, [0.5, 0.99]) if gaps else (float("nan"), float("nan"))
    return {
        "output_tokens_per_s": len(clients) * n_tokens / wall_s,
        "gap_p50_s": float(p50),
        "gap_p99_s": float(p99),
    }


def report_of(rounds: Rounds, *, command: str, config: dict[str, object]) -> Report:
    """Say what viewers cost."""
    table = Table(
        title=f"Throughput with {config['viewers']} viewers and with none, {config['streams']} streams",
        columns=("", "output tok/s", "gap p50, ms", "gap p99, ms", "sent to viewers, kB/s"),
        note="Medians, with the least and the largest of the rounds in brackets. A gap lies between two "
        "arrivals of text at one client.",
    )
    for name in (ALONE, WATCHED):
        gaps = [with_range([1e3 * s for s in rounds.values(name, f"gap_{p}_s")], "") for p in ("p50", "p99")]
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


def main() -> None:
    """Take turns and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: %(default)s)")
    parser.add_argument("--viewers", type=int, default=10, help="viewers (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=16, help="streams at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens per stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, after one to warm up")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the report")
    args = parser.parse_args()

    def run(n_viewers: int) -> Figures:
        return asyncio.run(
            measure(args.url, n_viewers=n_viewers, n_streams=args.streams, n_tokens=args.tokens)
        )

    contenders = {ALONE: lambda: run(0), WATCHED: lambda: run(args.viewers)}
    try:
        rounds = run_rounds(contenders, n_rounds=args.rounds, in_process=False)
    except OSError as error:
        raise SystemExit(f"{args.url} does not answer: {error}") from None
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    config = {"viewers": args.viewers, "streams": args.streams, "tokens": args.tokens, "rounds": args.rounds}
    options = " ".join(f"--{name} {value}" for name, value in config.items())
    report = report_of(rounds, command=f"python -m cobali_ray.bench.viewers {options}", config=config)
    deliver(report, args.out)


if __name__ == "__main__":
    main()
