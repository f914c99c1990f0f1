"""`cobali bench chats`: how much of their prompts people who chat at the same time find in the KV cache."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from cobali_ray.engine.opening import SCRIPTED
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings, read_settings
from cobali_workloads.commands.options import OUT, Out, numbers, spell
from cobali_workloads.inside.chats import Chats, hybrid, run_chats
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver

WANTED = 0.95
"""Least share of what a perfect cache of the same cells would have held."""
NOTE = (
    "Cached: prompt tokens that were not computed. Same slots: what as many slots would have held that keep "
    "one sequence each and always give up the one needed last, if requests came one at a time. Same cells: "
    "what a perfect cache with as many KV cells as slots and host memory have together would have held, each "
    "shared prefix once, "
    "keeping what is needed soonest. Unlimited: the same with cells without end. Times are simulated, so "
    "nothing here depends on the machine."
)

NOTE_OF_STATES = (
    "The hybrid has the shape of Qwen 3.5 0.8B: a token takes a quarter of the plain model's bytes, a state "
    "as much as 400 tokens of the plain one. Of the same host memory a quarter is for cells and the rest for "
    "states; what its slots save is not given to it."
)


def chats(
    people: Annotated[str, typer.Option(help="How many people chat at once.")] = "1,2,12,40",
    system: Annotated[str, typer.Option(help="Tokens of their shared system prompt; 0: none.")] = "0,40,500",
    cells: Annotated[
        str, typer.Option(help="KV cells of all slots; slots * ctx is the most they can use.")
    ] = "65536,16384",
    host: Annotated[
        int, typer.Option(min=0, help="MiB of host memory; each holds 1,024 tokens of the scripted model.")
    ] = 64,
    slots: Annotated[int, typer.Option(min=1, help="Slots.")] = 16,
    ctx: Annotated[int, typer.Option(min=2048, help="Most tokens of one conversation.")] = 4096,
    model: Annotated[str, typer.Option(help="The model; the scripted one takes no time.")] = f"{SCRIPTED}:0",
    states: Annotated[
        bool, typer.Option("--states", help="Also serve them with a hybrid shape in the same memory.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of texts, lengths and times.")] = 0,
    out: Out = OUT,
) -> None:
    """Simulate chats on the real engine with a virtual clock; compare its hits with a perfect cache."""
    scenes: dict[tuple[int, int, int], Chats] = {}
    of_hybrid: dict[tuple[int, int, int], Chats] = {}
    for n_cells in numbers("--cells", cells):
        settings = _settings(model, slots, ctx, n_cells, host)
        # A cell takes a quarter, so that host memory holds as many, and has room for states.
        shared = settings.replaced(host_cache_mib=host // 4, state_cache_mib=host - host // 4)
        for n_system in numbers("--system", system, least=0):
            for n_people in numbers("--people", people):
                scene = (n_people, n_system, seed)
                scenes[n_cells, n_system, n_people] = run_chats(settings, *scene)
                if states:
                    of_hybrid[n_cells, n_system, n_people] = run_chats(shared, *scene, open_model=hybrid)
    command = spell(
        "chats",
        people=people,
        system=system,
        cells=cells,
        host=host,
        slots=slots,
        ctx=ctx,
        model=model,
        seed=seed,
        **({"states": states} if states else {}),
    )
    config = {"model": model, "n_slots": slots, "n_ctx": ctx, "host_cache_mib": host, "seed": seed}
    report = _report(command, scenes, config, slots)
    if of_hybrid:
        report.tables.append(_of_states(scenes, of_hybrid))
        report.notes.append(NOTE_OF_STATES)
    deliver(report, out)


def _of_states(
    scenes: dict[tuple[int, int, int], Chats], of_hybrid: dict[tuple[int, int, int], Chats]
) -> Table:
    table = Table(
        "The same chats on a hybrid that goes back to states",
        ["people", "system prompt", "cells", "cached, plain", "cached, hybrid", "hybrid / plain"],
        note=f"Wanted: hybrid / plain of at least {WANTED:.2f}.",
    )
    for (n_cells, n_system, n_people), scene in scenes.items():
        other = of_hybrid[n_cells, n_system, n_people].cached
        table.rows.append((
            str(n_people), str(n_system), str(n_cells), f"{scene.cached:.1%}", f"{other:.1%}",
            f"{other / scene.cached:.2f}" if scene.cached else "-",
        ))  # fmt: skip
    return table


def _settings(model: str, n_slots: int, n_ctx: int, n_cells: int, host_mib: int) -> EngineSettings:
    if n_cells > n_slots * n_ctx:
        raise ConfigError("--cells", f"{n_slots} slots of {n_ctx} tokens cannot use {n_cells} cells")
    kv_cells = None if n_cells == n_slots * n_ctx else n_cells
    return read_settings(
        {
            "model": model,
            "n_slots": n_slots,
            "n_ctx": n_ctx,
            "kv_cells": kv_cells,
            "host_cache_mib": host_mib,
        }
    )


def _report(
    command: str, scenes: dict[tuple[int, int, int], Chats], config: dict[str, object], n_slots: int
) -> Report:
    table = Table(
        "Prompt tokens taken from the cache",
        ["people", "system prompt", "cells", "requests", "prompt tokens", "cached", "same slots",
         "same cells", "unlimited", "cached / same slots", "cached / same cells", "TTFT p50 ms"],
        note=f"Wanted: cached / same cells of at least {WANTED:.2f}.",
    )  # fmt: skip
    series: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for (n_cells, n_system, n_people), scene in scenes.items():
        best, unlimited = scene.best(scene.n_cells), scene.best(None)
        in_slots = scene.best_in_slots(n_slots)
        ttft_s = median(result.stats.ttft_s or 0.0 for result in scene.turns)
        table.rows.append((
            str(n_people), str(n_system), str(n_cells), str(len(scene.turns)), str(scene.n_prompt),
            *(f"{share:.1%}" for share in (scene.cached, in_slots, best, unlimited)),
            *(f"{scene.cached / share:.2f}" if share else "-" for share in (in_slots, best)),
            f"{1e3 * ttft_s:.0f}",
        ))  # fmt: skip
        for name, share in (("cached", scene.cached), ("same cells", best)):
            lines = series.setdefault(n_cells, {})
            lines.setdefault(f"{name}, system prompt of {n_system}", []).append((n_people, 100 * share))
    samples = {
        f"{n_people} people, system prompt of {n_system}, {n_cells} cells": [
            {"turn": result.turn, **result.stats._asdict()} for result in scene.turns
        ]
        for (n_cells, n_system, n_people), scene in scenes.items()
    }
    figures = {
        f"{n_cells}-cells": plots.lines(
            f"Prompt tokens from the cache, {n_cells} cells", "people", "%", lines, log_x=True
        )
        for n_cells, lines in series.items()
    }
    return Report(
        name="chats",
        title="Prefixes of people who chat at the same time",
        command=command,
        config=config,
        tables=[table],
        samples=samples,
        figures=figures,
        notes=[NOTE],
    )
