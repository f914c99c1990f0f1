"""`cobali bench peers`: this server and llama-server in turn, on the same libraries and settings."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import count
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cobali_ray.backend.threads import ENVIRONMENT, Wait
from cobali_ray.command_line import assignment
from cobali_ray.errors import ConfigError, InternalError
from cobali_ray.models.commands import progress_bars
from cobali_ray.models.registry import resolve
from cobali_ray.ports import free_port
from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.options import OUT, NRounds, Out, Quick, check_model
from cobali_workloads.commands.peers_report import best_tables, ratio_plot
from cobali_workloads.commands.serve import command_line, report_of
from cobali_workloads.commands.serve_report import spread_of
from cobali_workloads.inside.child import Child
from cobali_workloads.load.options import Workload, read_workload, shape_from_file, shortened
from cobali_workloads.load.prompts import PromptMaker, WordCosts
from cobali_workloads.load.reply import Exchange, timeline_of
from cobali_workloads.load.run import word_costs
from cobali_workloads.load.sender import LoopTimer, Sender, closed_loop
from cobali_workloads.load.target import Endpoint, Job, Target, connect, parse_target
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds
from cobali_workloads.servers.llama_server import (
    PACKAGE,
    VARIANTS,
    PeerSettings,
    build_key,
    installed_libraries,
    llama_server_binary,
    server_command,
)
from cobali_workloads.servers.presets import IN_PROCESS, PRESETS, InProcessCase, Preset
from cobali_workloads.servers.process import ServerProcess, our_server
from cobali_workloads.servers.versus import RUNNING, STATES, Start, capacity_of, loads_of, run_versus

IN_PROCESS_NAME = "inprocess"
DEFAULT_PRESET = "burst-0.5b"
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """What every comparison of one call has in common."""

    binary: Path
    threads: int
    threads_wait: Wait
    endpoint: Endpoint
    peers: tuple[tuple[str, str], ...]
    llama_args: tuple[str, ...]
    capacity_rps: float | None
    n_rounds: int
    quick: bool
    together: bool
    ours: Mapping[str, Any]

    def settings(self, model: Path, n_slots: int, n_ctx: int) -> PeerSettings:
        """Return what both servers get."""
        return PeerSettings(
            model=model, n_slots=n_slots, n_ctx=n_ctx, n_threads=self.threads,
            threads_wait=self.threads_wait,
        )  # fmt: skip


def peers(
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(PRESETS)} or {IN_PROCESS_NAME}; repeatable.  [default: {DEFAULT_PRESET}]"
        ),
    ] = None,
    shape: Annotated[
        Path | None, typer.Option(help="A load shape file instead of the preset's load.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model instead of the preset's.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Slots instead of the preset's.")] = None,
    ctx: Annotated[int | None, typer.Option(min=16, help="Tokens per slot instead of the preset's.")] = None,
    llama_args: Annotated[
        list[str] | None,
        typer.Option(help='A further llama-server with these arguments, such as "-b 512"; repeatable.'),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help='Of the four settings of llama-server only these, such as "-fa on --no-kv-unified"; '
            "repeatable."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads of each.  [default: all cores]")
    ] = None,
    threads_wait: Annotated[
        str,
        typer.Option(
            help="How OpenMP threads wait, on both sides: active (spin), brief (our auto), passive."
        ),
    ] = "brief",
    capacity: Annotated[
        float | None,
        typer.Option(
            help="Requests per second that the loads steady-* are shares of.  [default: what llama-server "
            "finishes, measured first]"
        ),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(min=0.01, max=4.0, help="Shares of the capacity instead of the preset's; repeatable."),
    ] = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME=URL", help="A further running server to measure."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any further setting of our server."),
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Start every server once, and let them take turns load by load: no drift between them, but "
            "memory for all, and nothing of the time right after a start.",
        ),
    ] = False,
    rounds: NRounds = 5,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Compare with llama-server, built here over the installed llama.cpp libraries (minutes, once).

    Each server is started for each load and round and gets the load twice: right after the start, and
    warmed; with --together all run for the whole time. llama-server takes part with four settings, or with
    those of --only, and what counts is the best of them.
    """
    names = preset or [DEFAULT_PRESET]
    if unknown := [name for name in names if name not in {*PRESETS, IN_PROCESS_NAME}]:
        raise ConfigError(
            "--preset",
            f"there is no preset {unknown[0]}; choose from {', '.join((*PRESETS, IN_PROCESS_NAME))}",
        )
    if endpoint not in ("completions", "chat"):
        raise ConfigError("--endpoint", f"must be completions or chat, got {endpoint!r}")
    if unknown := [text for text in only or () if text not in VARIANTS]:
        raise ConfigError("--only", f"must be one of {'; '.join(VARIANTS)}, got {unknown[0]!r}")
    if capacity is not None and not 0 < capacity < inf:
        raise ConfigError("--capacity", f"must be a finite number above 0, got {capacity:g}")
    if threads_wait not in ENVIRONMENT:
        raise ConfigError("--threads-wait", f"must be one of {', '.join(ENVIRONMENT)}, got {threads_wait!r}")
    load = read_workload(shape_from_file(shape), shape.parent) if shape else None
    further = tuple(parse_target(text) for text in peer or ())
    assigned = dict(assignment(text) for text in setting or ())
    if model is not None:
        check_model(model)
    with ended_in_order(), progress_bars() as progress:
        binary = llama_server_binary(progress)
    options = PeerOptions(
        binary=binary,
        threads=threads or len(os.sched_getaffinity(0)),
        threads_wait=threads_wait,
        endpoint=endpoint,  # type: ignore[arg-type]
        peers=further,
        llama_args=(*(only or VARIANTS), *(llama_args or ())),
        capacity_rps=capacity,
        n_rounds=1 if quick else rounds,
        quick=quick,
        together=together,
        ours=assigned,
    )
    for name in names:
        if name == IN_PROCESS_NAME:
            cases = [case for case in IN_PROCESS if model in {None, case.model}]
            with ended_in_order():
                report = compare_in_process(cases, options)
        else:
            chosen = PRESETS[name]
            shares = tuple(share) if share and chosen.capacity_shares else chosen.capacity_shares
            chosen = replace(
                chosen, model=model or chosen.model, n_slots=slots or chosen.n_slots,
                n_ctx=ctx or chosen.n_ctx, capacity_shares=() if load else shares,
            )  # fmt: skip
            own = load or Workload(chosen.shape)
            with ended_in_order():
                report = compare(chosen, shortened(own) if quick else own, options)
        deliver(report, out)


def compare(preset: Preset, workload: Workload, options: PeerOptions) -> Report:
    """Start the servers in turn, run the loads against each, and report."""
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cobali-peers-") as scratch:
        folder = Path(scratch)
        settings = options.settings(_model(preset.model), preset.n_slots, preset.n_ctx)
        settings = replace(settings, comes_back=workload.shape.turns is not None)
        make: dict[str, Callable[[], ServerProcess]] = {
            "cobali": partial(our_server, settings, folder, options.ours)
        }
        for further in options.llama_args:
            make[f"llama-server {further}"] = partial(llama_server, options.binary, settings, folder, further)
        servers: dict[str, Start] = {
            name: partial(_started, name, make_server, options.endpoint, seen)
            for name, make_server in make.items()
        }
        for name, url in options.peers:
            servers[name] = partial(_running, connect(name, url, endpoint=options.endpoint))
        capacity_rps = options.capacity_rps
        with servers[f"llama-server {options.llama_args[0]}"]() as target:
            costs, notes = word_costs(target)
            if preset.capacity_shares and capacity_rps is None:
                with Console(stderr=True).status(f"Measuring what {target.name} finishes ..."):
                    capacity_rps = capacity_of(target, workload, costs, preset.n_slots, TIMEOUT_S)
        loads = loads_of(workload.shape, preset.capacity_shares, capacity_rps or nan)
        with ExitStack() as all_run:
            if options.together:
                targets = {name: all_run.enter_context(start()) for name, start in servers.items()}
                for target in targets.values():
                    warm_up(target, costs)
                servers = {name: partial(_running, target) for name, target in targets.items()}
            result = run_versus(
                workload, loads, servers, costs, n_rounds=options.n_rounds, timeout_s=TIMEOUT_S,
                states=RUNNING if options.together else STATES,
            )  # fmt: skip
    report = report_of(result, f"peers-{preset.name}{'-together' * options.together}", preset.title)
    report.tables[:0] = best_tables(result)
    report.figures["ratios"] = ratio_plot(result)
    report.config |= _fairness(settings, seen)
    report.config["rates_rps"] = {load.label: load.shape.rate_rps for load in loads if load.shape.rate_rps}
    if preset.capacity_shares:
        report.config["capacity_rps"] = capacity_rps
        report.notes.append(f"Capacity: {capacity_rps:.3g} requests/s; all servers get the same rates.")
    report.notes += notes
    report.notes.append(
        "All servers run, and take turns load by load: what ours takes while it is idle, theirs lack, too."
        if options.together
        else "Only one server runs at a time, started for each load and round: fresh is right after the "
        "start, warmed after one run of the same load with other prompts."
    )
    return report


@contextmanager
def _started(
    name: str, make: Callable[[], ServerProcess], endpoint: Endpoint, seen: dict[str, Any]
) -> Iterator[Target]:
    """Run a server for as long as the block; `seen` keeps what is known of it."""
    with make() as server:
        seen[name] = _seen(server)
        yield connect(name, server.url, endpoint=endpoint)


def _running(target: Target) -> AbstractContextManager[Target]:
    """Take a server that runs already."""
    return nullcontext(target)


def llama_server(binary: Path, settings: PeerSettings, folder: Path, further: str = "") -> ServerProcess:
    """Return llama-server with `further` arguments on a free port."""
    name = f"llama-server {further}".strip()
    port = free_port()
    return ServerProcess(
        name,
        server_command(binary, settings, port, further=further),
        url=f"http://127.0.0.1:{port}",
        ready="/health",
        environ=settings.environ(),
        log=folder / f"{name.replace(' ', '')}.log",
    )


def compare_in_process(cases: list[InProcessCase], options: PeerOptions) -> Report:
    """Run the engine in this process and llama-server without streaming in turn, model after model."""
    table = Table(
        "Output tokens/s, all prompts at once",
        ["model", "requests", "tokens each", "engine in process", "llama-server", "ratio"],
        note="Medians of the rounds; the ratio within each round: median (least to largest).",
    )
    samples, notes, config = {}, [], {}
    for case in cases:
        rounds, fair = _in_process_rounds(case, options)
        config[case.model], samples[case.model] = fair, rounds.as_json()
        notes += rounds.notes()
        ours, theirs = (rounds.median(name, "output_tokens_per_s") for name in ("engine", "llama-server"))
        ratio = spread_of(rounds.ratios("engine", "llama-server", "output_tokens_per_s"))
        lengths = f"{case.n_prompt} + {case.n_output}"
        table.rows.append([case.model, str(case.n_requests), lengths, f"{ours:.1f}", f"{theirs:.1f}", ratio])
    return Report(
        name="peers-inprocess", title="The engine in process against llama-server without streaming",
        command=command_line(), config=config, tables=[table], samples=samples,
        notes=["Prompts are tokenised before the engine's clock starts; llama-server tokenises inside its.",
               *notes],
    )  # fmt: skip


def _in_process_rounds(case: InProcessCase, options: PeerOptions) -> tuple[Rounds, dict[str, Any]]:
    n_requests = 4 if options.quick else case.n_requests
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cobali-peers-")))
        settings = options.settings(_model(case.model), 16, 1024)
        server = llama_server(options.binary, settings, folder, "--no-kv-unified")
        stack.enter_context(server)
        target: Target = connect("llama-server", server.url)
        maker = PromptMaker(word_costs(target)[0], seed=23)

        def texts(number: int) -> list[str]:
            return [maker.text(f"{number} {i}", case.n_prompt) for i in range(n_requests)]

        values = {
            "model": str(settings.model), "n_slots": settings.n_slots, "n_ctx": settings.n_ctx,
            "n_threads": settings.n_threads, "threads_wait": settings.requested_wait, "kv": "split",
            **options.ours,
        }  # fmt: skip
        engine = stack.enter_context(Child(values, environ=settings.environ(), log=folder / "engine.log"))
        engine.answer()
        ours, theirs = count(), count()  # rounds: both get the same prompts in one, new ones in the next
        contenders: dict[str, Callable[[], Figures]] = {
            "engine": lambda: _with_rate(engine.order(texts=texts(next(ours)), n_output=case.n_output)),
            "llama-server": lambda: _with_rate(whole_answers(target, texts(next(theirs)), case.n_output)),
        }
        rounds = run_rounds(contenders, n_rounds=options.n_rounds, in_process=False)
        return rounds, _fairness(settings, {server.name: _seen(server)})


def warm_up(target: Target, costs: WordCosts) -> None:
    """Send a few short requests."""
    maker = PromptMaker(costs, seed=22)
    whole_answers(target, [maker.text(f"warm {i}", 16) for i in range(4)], 8)


def whole_answers(target: Target, texts: Sequence[str], n_output: int) -> dict[str, float]:
    """Send all prompts at once and wait for whole answers. Raises InternalError if one failed."""

    async def send() -> list[Exchange]:
        timer = LoopTimer()
        sender = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S, stream=False)
        return await closed_loop(sender, [[Job(prompt=text, n_output=n_output)] for text in texts], timer)

    answers = [timeline_of(exchange) for exchange in asyncio.run(send())]
    if wrong := [a for a in answers if a.status != "ok"]:
        raise InternalError(f"{target.name} {wrong[0].status} a request: {wrong[0].error}")
    return {
        "wall_s": max(a.ended_s for a in answers) - min(a.sent_s for a in answers),
        "n_prompt": sum(a.n_prompt or 0 for a in answers),
        "n_output": sum(a.n_output for a in answers),
    }


def _with_rate(figures: dict[str, float]) -> Figures:
    return figures | {"output_tokens_per_s": figures["n_output"] / figures["wall_s"]}


def _model(reference: str) -> Path:
    with progress_bars() as progress:
        return resolve(reference, progress=progress)


def _seen(server: ServerProcess) -> dict[str, list[str]]:
    """Say what a server was called with, and with which libraries it really computes."""
    return {
        "command": [Path(word).name if word.startswith("/") else word for word in server.command],
        "libraries": [Path(file).name for file in server.mapped_libraries()],
    }


def _fairness(settings: PeerSettings, seen: dict[str, Any]) -> dict[str, Any]:
    """Say what all servers got."""
    return {
        "model": settings.model.name, "n_slots": settings.n_slots, "n_ctx_per_slot": settings.n_ctx,
        "n_threads": settings.n_threads, "openmp": settings.threads_wait, "servers": seen,
        "build": build_key(installed_libraries(), version(PACKAGE)),
    }  # fmt: skip
