"""How late tokens reach clients: `python -m cobali_ray.bench.delivery --ticks ticks.jsonl`.

Against a server that was started with `--set log_ticks=ticks.jsonl` and, usually, `--model builtin:scripted`.
Both sides read the machine's monotonic clock, so the lag of a token is the time from the end of the tick
that published it to the client's socket callback. Streams start one after another, each after the first
token of the one before; so the ticks in which one more row was sampled than decoded name, in order, the
tick of each stream's first token, and one token follows per tick. Only ticks in which all streams run count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from cobali_ray.errors import ConfigError

_EVENT = re.compile(rb'^data: (\{"id".*\})\s*$', re.MULTILINE)


@dataclass(slots=True)
class StreamClient(asyncio.Protocol):
    """One HTTP/1.1 streaming request; keeps what arrived and when, and parses later."""

    request: bytes
    first: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Stamp what arrived."""
        self.pieces.append((time.perf_counter(), data))
        if not self.first.is_set() and b'"delta":{"content"' in data:
            self.first.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        del exc
        self.first.set()
        self.closed.set()

    def texts(self) -> list[tuple[float, str]]:
        """Return each event's text and the time at which its last byte arrived."""
        ends = np.cumsum([len(data) for _, data in self.pieces])
        times = [at for at, _ in self.pieces]
        found = []
        for event in _EVENT.finditer(b"".join(data for _, data in self.pieces)):
            choices = orjson.loads(event[1])["choices"]
            text = choices[0]["delta"].get("content") if choices else None
            if text:
                found.append((times[int(np.searchsorted(ends, event.end()))], text))
        return found

    def arrivals(self) -> list[float]:
        """Return one arrival time per token (scripted tokens are one character each)."""
        return [at for at, text in self.texts() for _ in text]

    def chunk_arrivals(self) -> list[float]:
        """Return the arrival times of pieces with text, each counted once."""
        return sorted({at for at, _ in self.texts()})


def stream_request(url: str, n_tokens: int, text: str = "tick") -> tuple[str, int, bytes]:
    """Return host, port and the bytes of a greedy streaming chat request."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "max_tokens": n_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return host, port, (head + body).encode()


async def run(url: str, n_streams: int, n_tokens: int) -> list[list[float]]:
    """Start the streams one after another; return each one's token arrival times."""
    host, port, request = stream_request(url, n_tokens)
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(n_streams):
        _, client = await loop.create_connection(lambda: StreamClient(request), host, port)
        clients.append(client)
        await client.first.wait()
    for client in clients:
        await client.closed.wait()
    return [client.arrivals() for client in clients]


def lags(ticks: list[dict[str, float]], arrivals: list[list[float]]) -> tuple[np.ndarray, float]:
    """Return the lag of every token while all streams ran, in seconds, and tokens arriving per second."""
    published = np.array([t["started_s"] + t["total_s"] for t in ticks])
    firsts = [i for i, t in enumerate(ticks) if t["n_sampled"] - t["n_decode"] == 1]
    if len(firsts) != len(arrivals):
        raise ConfigError(
            "--ticks", f"{len(arrivals)} streams, but {len(firsts)} first tokens in the tick log"
        )
    all_run = firsts[-1]
    last_run = min(first + len(a) for first, a in zip(firsts, arrivals, strict=True)) - 1
    late, n_window = [], 0
    start, end = published[all_run], published[last_run]
    for first, times in zip(firsts, arrivals, strict=True):
        window = np.array(times[all_run - first : last_run - first])
        late.append(window - published[all_run:last_run])
        n_window += int(((window >= start) & (window < end)).sum())
    return np.concatenate(late), n_window / float(end - start)


def main() -> None:
    """Run the load against a server and print the lags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: %(default)s)")
    parser.add_argument("--ticks", type=Path, required=True, help="the server's tick log (setting log_ticks)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128], help="streams at once")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long all streams run together")
    parser.add_argument("--tick-s", type=float, default=0.02, help="the model's tick (default: %(default)s)")
    args = parser.parse_args()
    table = Table(title=f"Delivery lag, ms, tick {1e3 * args.tick_s:.0f} ms")
    for column in ("streams", "tok/s offered", "tok/s arrived", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="right")
    for n_streams in args.streams:
        n_tokens = int((args.seconds + n_streams * 3 * args.tick_s) / args.tick_s)
        before = len(args.ticks.read_bytes().splitlines())
        arrivals = asyncio.run(run(args.url, n_streams, n_tokens))
        ticks = [orjson.loads(line) for line in args.ticks.read_bytes().splitlines()[before:]]
        late, rate = lags(ticks, arrivals)
        shares = [f"{1e3 * value:.1f}" for value in np.quantile(late, [0.5, 0.9, 0.99, 1.0])]
        table.add_row(str(n_streams), f"{n_streams / args.tick_s:.0f}", f"{rate:.0f}", *shares)
    Console().print(table)


if __name__ == "__main__":
    main()
