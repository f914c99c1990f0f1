"""`cobali bench keep`: which prefixes a cache should give up, by our rule and by others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, Out, spell
from cobali_workloads.inside.keep import RULES, CacheResult, CacheTrace, generated, play, read_hashes
from cobali_workloads.report.report import Report, Table, deliver

NOTE = (
    "Computed: what was left of all prompts' cost, deep tokens weighed as the engine does; less is better. "
    "llama-server's: whole sequences, the oldest saved goes, a hit takes the entry out, entries of which "
    "less than a quarter would be kept are not looked at. Room is a share of all tokens that were ever said. "
    "Nothing here depends on the machine."
)


def keep(
    minutes: Annotated[float, typer.Option(min=1, help="Minutes of the generated trace.")] = 120,
    trace: Annotated[
        Path | None, typer.Option(help="A trace instead: JSON lines with hash_ids, such as Mooncake's.")
    ] = None,
    room: Annotated[str, typer.Option(help="Cache sizes, as shares of all tokens.")] = "0.01,0.03,0.1",
    seed: Annotated[int, typer.Option(help="Seed of the generated trace.")] = 0,
    out: Out = OUT,
) -> None:
    """Replay requests with several rules for what a prefix cache keeps, without a model."""
    shares = _shares(room)
    cache_trace = generated(60 * minutes, seed) if trace is None else _read(trace)
    n_distinct, rows = cache_trace.n_distinct, list[Sequence[str]]()
    kept: dict[str, dict[str, CacheResult]] = {}
    for share in shares:
        n_cells = max(int(share * n_distinct), 1)
        results = {
            name: play(cache_trace, rule(n_cells, cache_trace.block), n_cells) for name, rule in RULES.items()
        }
        kept[f"{share:g}"] = results
        ours, *others = (result.computed for result in results.values())
        rows.append((
            f"{share:g}", str(n_cells * cache_trace.tokens_each),
            *(f"{result.computed:.3f}" for result in results.values()),
            *(f"{ours / other:.2f}" for other in others),
            f"{results['ours'].cached:.1%}", f"{results['ours'].fullest:.4f}",
        ))  # fmt: skip
    table = Table(
        f"Left to compute ({cache_trace.name}, {len(cache_trace.visits)} requests)",
        [
            "room",
            "tokens",
            *RULES,
            "ours / llama-server's",
            "cached by ours",
            "fullest / bound",
        ],
        rows,
        note="Fullest: the most that our rule ever held, after any request.",
    )
    report = Report(
        name="keep",
        title="Which prefixes are kept",
        command=spell("keep", minutes=None if trace else minutes, trace=trace, room=room, seed=seed),
        config={"trace": cache_trace.name, "seed": seed},
        tables=[table],
        samples={
            share: {name: result._asdict() for name, result in results.items()}
            for share, results in kept.items()
        },
        figures={},
        notes=[NOTE],
    )
    deliver(report, out)


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        shares = []
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ConfigError("--room", f"expected shares above 0 and up to 1, separated by commas, got {text!r}")
    return shares


def _read(path: Path) -> CacheTrace:
    try:
        return read_hashes(path.stem, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--trace", f"{path} cannot be read: {error}") from error
