"""`cobali bench speculation`: streams with drafts against streams without, on free text and on edits."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Annotated

import typer

from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.engine.opening import limits_of
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, Quick, numbers, spell
from cobali_workloads.inside.runs import opened
from cobali_workloads.inside.speculation import N_CHANGED, Kind, SpeculationExperiment, SpeculationVariant
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

MIN_FREE, MIN_EDIT = 0.98, 1.4
QUICK_TOKENS = 16
MIN_PREFIX = 8
"""Slots have to remember, for those who ask again."""
NOTE = (
    "What the model says is scripted over real passes: its logits are drawn as always, but the token of the "
    f"text is the likeliest. An edit says the prompt again, one token in {N_CHANGED} changed; free text goes "
    "on where the prompt ends; again is free text that was asked and answered just before. With drafts and "
    "without take turns, each keeping what it learned. Ratios are of whole answers, prompts among them, each "
    f"within its round. The targets: free text at least {MIN_FREE}, edits with one client at least "
    f"{MIN_EDIT}."
)


def speculation(
    model: Model = "builtin:synthetic-tiny-152k",
    clients: Annotated[str, typer.Option(help="Clients at once, with free text.")] = "1,2,4,8,16,32",
    editors: Annotated[str, typer.Option(help="Clients at once, with edits.")] = "1,4",
    askers: Annotated[str, typer.Option(help="Clients at once that repeat a question.")] = "1,4",
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each prompt, and of each answer.")] = 256,
    rounds: NRounds = 7,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Compare what streams gain or lose by drafts of their own text, at several numbers of clients."""
    if quick:
        rounds, tokens = 1, QUICK_TOKENS
    numbers_of: dict[Kind, list[int]] = {
        "edit": numbers("--editors", editors),
        "again": numbers("--askers", askers),
        "free": numbers("--clients", clients),
    }
    cases = [(kind, n) for kind, of_kind in numbers_of.items() for n in of_kind]
    most = max(n for _, n in cases)
    asked = {"n_slots": most, "n_ctx": 2 * tokens + 64, "speculation": "auto"}
    with opened(model, **asked, min_prefix=MIN_PREFIX, host_cache_mib=0) as (backend, settings):
        limits = limits_of(backend, settings)
        scene = SpeculationExperiment(backend, limits, n_prompt=tokens, n_answer=tokens)
        sides = {
            "on": SpeculationVariant(Pacer("auto", limits.grain), Speculation()),
            "off": SpeculationVariant(Pacer("auto", limits.grain), None),
        }
        seeds = {(kind, n, side): count() for kind, n in cases for side in sides}

        def run(kind: Kind, n: int, side: str) -> Figures:
            return scene.run(sides[side], kind, n, next(seeds[kind, n, side]))

        contenders = {
            _name(kind, n, side): partial(run, kind, n, side) for kind, n in cases for side in sides
        }
        found = run_rounds(contenders, n_rounds=rounds, n_warmup=0 if quick else 1)
        n_vocab = backend.n_vocab
    command = spell(
        "speculation",
        model=model,
        clients=clients,
        editors=editors,
        askers=askers,
        tokens=tokens,
        rounds=rounds,
    )
    report = Report(
        name="speculation", title="Drafts against none", command=command,
        config={"model": model, "n_vocab": n_vocab, "tokens": tokens},
        tables=[_table(found, cases)],
        samples=found.as_json(),
        figures={"ratios": plots.dots("With drafts / without", "clients", "ratio", _points(found, cases))},
        notes=[NOTE, *found.notes()],
    )  # fmt: skip
    deliver(report, out)


def _name(kind: Kind, n: int, side: str) -> str:
    return f"{kind} {n} {side}"


def _points(found: Rounds, cases: list[tuple[Kind, int]]) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for kind, n in cases:
        for ratio in found.ratios(_name(kind, n, "on"), _name(kind, n, "off"), "output_tokens_per_s"):
            points.setdefault(kind, []).append((float(n), ratio))
    return points


def _table(found: Rounds, cases: list[tuple[Kind, int]]) -> Table:
    table = Table(
        "Output tokens per second",
        ("text", "clients", "without", "with / without", "tokens a pass", "drafted", "accepted"),
        note="Tokens a pass: of one stream, with drafts; drafted and accepted: per output token.",
    )
    for kind, n in cases:
        on, off = _name(kind, n, "on"), _name(kind, n, "off")
        ratios = with_range(found.ratios(on, off, "output_tokens_per_s"), "")
        a_pass = f"{1 / found.median(on, 'ticks_per_token'):.2f}"
        drafts = (f"{found.median(on, name):.2f}" for name in ("drafted", "accepted"))
        without = f"{found.median(off, 'output_tokens_per_s'):.0f}"
        table.rows.append((kind, str(n), without, ratios, a_pass, *drafts))
    return table
