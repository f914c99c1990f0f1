"""`cobali bench overhead`: what the HTTP path adds for one streaming client."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from cobali_ray.command_line import DEFAULT_URL, Key, Url, address_of
from cobali_ray.core.request.events import Delta, EngineEvent
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import open_engine
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings, read_settings
from cobali_workloads.commands.options import OUT, NRounds, Out, spell
from cobali_workloads.load.reply import timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender
from cobali_workloads.load.target import Job, Target, connect
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

PROMPT = "Explain in a few sentences how a server shares one device among many requests, and why. "
INSIDE, HTTP = "in process", "HTTP"
TIMEOUT_S = 60.0
_SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


def overhead(
    url: Url = DEFAULT_URL,
    key: Key = None,
    config: Annotated[Path, typer.Option(help="The Serve config with its settings.")] = Path(
        "serve_config.yaml"
    ),
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 48,
    rounds: NRounds = 60,
    out: Out = OUT,
) -> None:
    """Send requests to a running server and run the same ones in this process, in turn."""
    target = connect("server", address_of(url), endpoint="chat", api_key=key)
    inside = InProcess(_settings(config))
    numbers = {INSIDE: iter(range(rounds + 1)), HTTP: iter(range(rounds + 1))}

    def figures(name: str) -> Figures:
        text = f"{next(numbers[name])}: {PROMPT * 2}"  # distinct beginnings: no prefix is reused
        ttft_s, *_ = arrivals = (
            inside.run(text, tokens) if name == INSIDE else over_http(target, text, tokens)
        )
        gaps = np.diff(arrivals)
        return {"ttft_s": ttft_s, **{f"gap {i}": float(gap) for i, gap in enumerate(gaps)}}

    measured = run_rounds({name: lambda name=name: figures(name) for name in numbers}, n_rounds=rounds)  # type: ignore[misc]
    command = spell("overhead", url=url, config=config, tokens=tokens, rounds=rounds)
    report = Report(
        name="overhead", title="What HTTP and Ray add for one streaming client", command=command,
        config={"tokens": tokens}, tables=[table_of(measured)], samples=measured.as_json(),
        notes=measured.notes(),
    )  # fmt: skip
    deliver(report, out)


def _settings(config: Path) -> EngineSettings:
    try:
        return read_settings(yaml.safe_load(config.read_text())["applications"][0].get("args") or {})
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError) as error:
        raise ConfigError("--config", f"{config} is not a Serve config: {error}") from error


class InProcess:
    """The engine without HTTP: submit, tick, stamp the deltas."""

    def __init__(self, settings: EngineSettings) -> None:
        self._stamps: list[float] = []
        self._engine = open_engine(settings, self._sink)

    def _sink(self, batch: list[tuple[str, EngineEvent]]) -> None:
        if any(isinstance(event, Delta) for _, event in batch):
            self._stamps.append(time.perf_counter())

    def run(self, text: str, n_tokens: int) -> list[float]:
        """Return the arrival of each delta, in seconds since the request was sent."""
        self._stamps = []
        sent = time.perf_counter()
        words = self._engine.backend.words
        prompt = words.tokenize(words.chat.render([{"role": "user", "content": text}]), add_special=False)
        request = Request(request_id=text, prompt=tuple(prompt), max_tokens=n_tokens, sampling=_SAMPLING)
        self._engine.submit(request)
        while self._engine.has_work:
            self._engine.tick()
        return [stamp - sent for stamp in self._stamps]


def over_http(target: Target, text: str, n_tokens: int) -> list[float]:
    """Return the arrival of each delta, in seconds since the request was sent."""

    async def send() -> list[float]:
        timer = LoopTimer()
        sender = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S)
        answer = timeline_of(await sender(Job(prompt=text, n_output=n_tokens), timer.now()))
        if answer.status != "ok":
            raise ConfigError("--url", f"the server {answer.status} a request: {answer.error}")
        return [at - answer.sent_s for at in answer.deltas_s]

    return asyncio.run(send())


def table_of(measured: Rounds) -> Table:
    """Return the medians and tails of both paths, and what HTTP adds."""
    table = Table("One streaming client, ms", ("path", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99"))
    shares: dict[str, list[float]] = {}
    for name, runs in measured.figures.items():
        gaps = [value for run in runs for key, value in run.items() if key.startswith("gap")]
        both = (np.quantile(values, [0.5, 0.99]) for values in (measured.values(name, "ttft_s"), gaps))
        shares[name] = [1e3 * float(value) for pair in both for value in pair]
        table.rows.append((name, *(f"{value:.2f}" for value in shares[name])))
    added = (a - b for a, b in zip(shares[HTTP], shares[INSIDE], strict=True))
    table.rows.append(("added", *(f"{value:+.2f}" for value in added)))
    return table
