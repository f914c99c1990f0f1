"""The load options of `cobali bench serve`, read into shapes. Only files that a shape names are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_text
from cobali_workloads.load.prompts import read_prompts
from cobali_workloads.load.shape import (
    Conversations,
    Fixed,
    Intruder,
    Length,
    LoadShape,
    Prefix,
    PromptsFile,
    Slo,
    TraceFile,
    Uniform,
)
from cobali_workloads.load.shape_file import load_shape
from cobali_workloads.load.trace import read_trace
from cobali_workloads.load.workload import Arrival


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape with the content of the files it names."""

    shape: LoadShape
    texts: tuple[str, ...] = ()
    trace: tuple[Arrival, ...] = ()


def read_workload(shape: LoadShape, folder: Path) -> Workload:
    """Read the prompts or the trace that a shape names, relative to `folder`. Missing: ConfigError."""
    if isinstance(shape.prompt, PromptsFile):
        text = read_text("prompts_file", folder / shape.prompt.path)
        return Workload(shape, texts=tuple(read_prompts(text)))
    if isinstance(shape.prompt, TraceFile):
        text = read_text("trace", folder / shape.prompt.path)
        return Workload(shape, trace=tuple(read_trace(text, speed=shape.prompt.speed)))
    return Workload(shape)


def shape_from_file(path: Path) -> LoadShape:
    """Read a shape file."""
    return load_shape(read_text("--shape", path))


def parse_levels(text: str) -> tuple[int, ...]:
    """Read `1,2,4`."""
    try:
        levels = tuple(int(part) for part in text.split(","))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise ConfigError("--concurrency", f"expected whole numbers like 1,2,4, got {text!r}")
    return levels


def parse_length(setting: str, text: str) -> Length:
    """Read `128`, or `32-96` for a uniform length."""
    low, dash, high = text.partition("-")
    if not (low.isdecimal() and int(low) >= 1 and (not dash or (high.isdecimal() and int(high) >= int(low)))):
        raise ConfigError(setting, f"expected a length like 128 or 32-96, got {text!r}")
    return Uniform(low=int(low), high=int(high)) if dash else Fixed(tokens=int(low))


def parse_pairs(setting: str, text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Read `a=1,b=2.5` with these names only, each a number above 0."""
    pairs: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            pairs[name.strip()] = float(value)
        except ValueError:
            pairs[name.strip()] = -1.0
    if wrong := [name for name, value in pairs.items() if name not in names or not 0 < value < float("inf")]:
        raise ConfigError(
            setting, f"expected {', '.join(f'{n}=NUMBER' for n in names)}; wrong: {', '.join(wrong)}"
        )
    return pairs


def parse_slo(text: str) -> Slo:
    """Read `ttft=0.5,tpot=0.05,itl=0.2`, seconds."""
    return Slo(
        **{f"{name}_s": value for name, value in parse_pairs("--slo", text, ("ttft", "tpot", "itl")).items()}
    )


def parse_intruder(text: str) -> Intruder:
    """Read `every=2,prompt=4096,output=16`."""
    values = {"every": 2.0, "output": 16.0} | parse_pairs("--intruder", text, ("every", "prompt", "output"))
    if "prompt" not in values:
        raise ConfigError("--intruder", "needs prompt=TOKENS")
    return Intruder(
        every_s=values["every"], prompt_tokens=int(values["prompt"]), output_tokens=int(values["output"])
    )


def parse_prefix(text: str) -> Prefix:
    """Read `1024x8`: eight prefixes of 1,024 tokens."""
    tokens, _, n_groups = text.partition("x")
    if not (tokens.isdecimal() and n_groups.isdecimal() and int(tokens) and int(n_groups)):
        raise ConfigError("--prefix", f"expected TOKENSxGROUPS like 1024x8, got {text!r}")
    return Prefix(tokens=int(tokens), n_groups=int(n_groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options as typed; None leaves what the shape file, or the default, says."""

    shape: Path | None = None
    loop: str | None = None
    concurrency: str | None = None
    requests_per_client: int | None = None
    n_requests: int | None = None
    rate: float | None = None
    burstiness: float | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    prompts_file: Path | None = None
    trace: Path | None = None
    speed: float = 1.0
    prefix: str | None = None
    turns: int | None = None
    intruder: str | None = None
    slo: str | None = None
    warmup: int | None = None
    seed: int | None = None
    quick: bool = False

    def workload(self) -> Workload:
        """Return the load these options describe. What does not fit together: ConfigError."""
        shape = shape_from_file(self.shape) if self.shape else DEFAULT
        shape = replace(shape, **self._loop(shape), **self._content(), **self._rest())
        if shape.kind == "open" and shape.turns:
            raise ConfigError(
                "--turns", "conversations need a closed loop: the next turn waits for the answer"
            )
        folder = Path() if self.prompts_file or self.trace or not self.shape else self.shape.parent
        return shortened(read_workload(shape, folder)) if self.quick else read_workload(shape, folder)

    def _loop(self, shape: LoadShape) -> dict[str, Any]:
        loop = self.loop or ("open" if self.rate or self.trace else shape.kind)
        if loop not in {"closed", "open"}:
            raise ConfigError("--loop", f"must be closed or open, got {loop!r}")
        if loop == "open" and not (self.rate or self.trace or shape.kind == "open"):
            raise ConfigError("--rate", "an open loop needs a rate, or a trace")
        values: dict[str, Any] = {"kind": loop}
        if self.concurrency:
            values["concurrency"] = parse_levels(self.concurrency)
        elif loop == "closed" and not shape.concurrency:
            raise ConfigError("--concurrency", "a closed loop needs its levels")
        values["n_requests"] = self.n_requests or shape.n_requests or 100
        values["requests_per_client"] = self.requests_per_client or shape.requests_per_client or 4
        values |= {"rate_rps": self.rate} if self.rate else {}
        return values | ({"burstiness": self.burstiness} if self.burstiness else {})

    def _content(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.prompt_tokens:
            values["prompt"] = parse_length("--prompt-tokens", self.prompt_tokens)
        if self.output_tokens:
            values["output"] = parse_length("--output-tokens", self.output_tokens)
        if self.prompts_file:
            values["prompt"] = PromptsFile(path=str(self.prompts_file))
        if self.trace:
            values["prompt"] = values["output"] = TraceFile(path=str(self.trace), speed=self.speed)
        return values

    def _rest(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "prefix": parse_prefix(self.prefix) if self.prefix else None,
            "turns": Conversations(n_turns=self.turns) if self.turns else None,
            "intruder": parse_intruder(self.intruder) if self.intruder else None,
            "slo": parse_slo(self.slo) if self.slo else None,
            "warmup_requests": self.warmup,
            "seed": self.seed,
        }
        return {name: value for name, value in values.items() if value is not None}


def shortened(workload: Workload) -> Workload:
    """Cut a workload to a smoke test: two levels, two requests per client, few arrivals."""
    shape = workload.shape
    levels = shape.concurrency
    if len(levels) > 1:
        levels = tuple(dict.fromkeys((levels[0], min(levels[-1], 8))))
    n_turns = shape.turns.n_turns if shape.turns else 2
    return replace(
        workload,
        trace=workload.trace[:12],
        shape=replace(
            shape, concurrency=levels, requests_per_client=min(shape.requests_per_client, n_turns),
            n_requests=min(shape.n_requests, 12), warmup_requests=min(shape.warmup_requests, 2),
        ),
    )  # fmt: skip


DEFAULT = LoadShape(
    name="fixed",
    description="Prompts and answers of one length from clients that wait for their answer.",
    seed=1,
    kind="closed",
    prompt=Fixed(tokens=128),
    output=Fixed(tokens=64),
    ignore_eos=True,
    warmup_requests=4,
    slo=Slo(ttft_s=1.0, tpot_s=0.1),
    concurrency=(1, 2, 4, 8, 16, 32, 64, 128),
    requests_per_client=4,
)
"""What runs without a shape file."""
