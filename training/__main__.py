"""`python -m training`: make `builtin:tiny`, all of it or one step."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from training.errors import TrainingError
from training.preflight import require_room, require_torch
from training.show import CONSOLE

HERE = Path(__file__).parent
INTERRUPTED = 130


class Step(enum.StrEnum):
    """What can be done; each step needs the ones before it, but for the last, which `all` leaves out."""

    ALL = "all"
    CORPUS = "corpus"
    TRAIN = "train"
    EXPORT = "export"
    CHECK = "check"
    EVALUATE = "evaluate"
    MEASURE = "measure"
    FACTS = "facts"


def main(
    step: Annotated[Step, typer.Argument(help="Do everything, or one step.")] = Step.ALL,
    folder: Annotated[Path, typer.Option(help="Where everything is written.")] = HERE / "out",
    n_examples: Annotated[int | None, typer.Option(min=1000, help="Conversations in the corpus.")] = None,
    n_steps: Annotated[int | None, typer.Option(min=1, help="Stop earlier; the learning rate fits.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Begin with these weights and their tokenizer: a checkpoint, a GGUF file, builtin:tiny."
        ),
    ] = None,
    mean_with: Annotated[
        list[str] | None,
        typer.Option(help="Export the mean with these weights, named likewise; repeatable."),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(help="Ask this source more often, such as server.tools; repeatable."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, max=0.1, help="Highest learning rate; less for a short last run."),
    ] = None,
    passes: Annotated[
        int | None, typer.Option(min=1, help="Passes of 4,096 tokens in a step; fewer, and more steps.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of everything; another one, other examples.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; all cores by default.")] = None,
) -> None:
    """Make the model. A run that was interrupted goes on where it stopped when it is started again."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    options: dict[str, Any] = {
        "n_examples": n_examples,
        "n_steps": n_steps,
        "rate": rate,
        "embedding_rate": rate,
        "seed": seed,
    }
    options |= {"passes_per_step": passes, "more": tuple(more) if more else None}
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        if step is Step.FACTS:
            from training.facts import write_facts

            write_facts()
            return
        require_torch()
        require_room(folder)
        _work(step, folder, changes, weights, mean_with or [], threads)
    except TrainingError as error:
        CONSOLE.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(code=2) from error
    except KeyboardInterrupt as error:
        CONSOLE.print("Interrupted. The checkpoint is kept; the same command goes on from it.")
        raise typer.Exit(code=INTERRUPTED) from error


def _work(
    step: Step,
    folder: Path,
    changes: Mapping[str, Any],
    weights: str | None,
    mean_with: list[str],
    threads: int | None,
) -> None:
    import torch

    from training import check, evaluate, measure, steps
    from training.begin import place, read_weights, take_tokenizer
    from training.recipe import Recipe, Workshop

    if threads:
        torch.set_num_threads(threads)
    recipe, workshop = Recipe(**changes), Workshop(folder)
    begin = None
    if weights:
        begin, digest = read_weights(place(weights))
        recipe = dataclasses.replace(recipe, weights=digest)
        if not workshop.tokenizer.exists():
            take_tokenizer(place(weights), recipe.shape, workshop)
    others = [place(name) for name in mean_with]

    def chosen(candidate: Step) -> bool:
        return step in {Step.ALL, candidate}

    if step is Step.CORPUS or (step is Step.ALL and not workshop.corpus.exists()):
        steps.make_corpus(recipe, workshop)
    if chosen(Step.TRAIN):
        steps.train_model(recipe, workshop, begin)
    if chosen(Step.EXPORT):
        steps.export_model(recipe, workshop, others)
    if chosen(Step.CHECK):
        check.check_export(recipe, workshop, others)
    if chosen(Step.EVALUATE):
        evaluate.evaluate(workshop)
    if chosen(Step.MEASURE):
        measure.measure(workshop)


if __name__ == "__main__":
    typer.run(main)
    sys.exit(0)
