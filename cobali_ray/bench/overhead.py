"""What the HTTP path adds for one streaming client: `python -m cobali_ray.bench.overhead`.

Against a running server; the same model is opened in this process as well. The two take turns, request by
request, so that the machine's drift hits both.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cobali_ray.bench.delivery import StreamClient, stream_request
from cobali_ray.core.events import Delta, Event
from cobali_ray.core.request import GREEDY, Request
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock, model_path, open_backend
from cobali_ray.settings import read_settings

PROMPT = "Explain in a few sentences how a server shares one device among many requests, and why. "


class InProcess:
    """The engine without HTTP: submit, tick, stamp the deltas."""

    def __init__(self, values: dict[str, object]) -> None:
        settings = read_settings(values)
        self._backend, limits = open_backend(settings, model_path(settings))
        self._stamps: list[float] = []
        self._engine = Engine(self._backend, limits, MonotonicClock(), self._sink)

    def _sink(self, batch: list[tuple[str, Event]]) -> None:
        if any(isinstance(event, Delta) for _, event in batch):
            self._stamps.append(time.perf_counter())

    def run(self, number: int, text: str, n_tokens: int) -> list[float]:
        """Return the arrival of each delta, in seconds since the request was sent."""
        self._stamps = []
        sent = time.perf_counter()
        words = self._backend.words
        prompt = words.tokenize(words.chat.render([{"role": "user", "content": text}]), add_special=False)
        request = Request(request_id=str(number), prompt=tuple(prompt), max_tokens=n_tokens, sampling=GREEDY)
        self._engine.submit(request)
        while self._engine.has_work:
            self._engine.tick()
        return [stamp - sent for stamp in self._stamps]


async def over_http(url: str, text: str, n_tokens: int) -> list[float]:
    """Return the arrival of each piece with text, in seconds since the request was sent."""
    host, port, raw = stream_request(url, n_tokens, text)
    sent = time.perf_counter()
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: StreamClient(raw), host, port)
    await client.closed.wait()
    return [at - sent for at in client.chunk_arrivals()]


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: %(default)s)")
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="its settings")
    parser.add_argument("--rounds", type=int, default=60, help="requests of each kind")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per answer")
    args = parser.parse_args()
    inside = InProcess(yaml.safe_load(args.config.read_text())["applications"][0]["args"])
    ttft: dict[str, list[float]] = {"in process": [], "HTTP": []}
    itl: dict[str, list[float]] = {"in process": [], "HTTP": []}
    for number in track(range(args.rounds + 5), description="rounds"):
        text = f"{number}: {PROMPT * 2}"  # distinct beginnings: no prefix is reused
        runs = {
            "in process": inside.run(number, text, args.tokens),
            "HTTP": asyncio.run(over_http(args.url, text, args.tokens)),
        }
        if number < 5:
            continue  # warm-up
        for name, arrivals in runs.items():
            ttft[name].append(arrivals[0])
            itl[name] += np.diff(arrivals).tolist()
    table = Table(title=f"One streaming client, {args.rounds} rounds, ms")
    for column in ("path", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99"):
        table.add_column(column, justify="left" if column == "path" else "right")
    for name, firsts in ttft.items():
        values = (*np.quantile(firsts, [0.5, 0.99]), *np.quantile(itl[name], [0.5, 0.99]))
        table.add_row(name, *(f"{1e3 * value:.2f}" for value in values))
    added = [
        *np.quantile(ttft["HTTP"], [0.5, 0.99]) - np.quantile(ttft["in process"], [0.5, 0.99]),
        *np.quantile(itl["HTTP"], [0.5, 0.99]) - np.quantile(itl["in process"], [0.5, 0.99]),
    ]
    table.add_row("added", *(f"{1e3 * value:+.2f}" for value in added))
    Console().print(table)


if __name__ == "__main__":
    main()
