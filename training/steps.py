"""The steps from nothing to an evaluated model; each reads what the one before left in the folder."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from cobali_ray.settings import PLACES
from training.begin import read_weights
from training.checkpoint import load_checkpoint
from training.corpus import server
from training.corpus.build import training_examples
from training.corpus.example import Example
from training.dataset import Dataset, encode, plan
from training.errors import TrainingError
from training.export import write_gguf
from training.loop import Run, train
from training.model import Decoder
from training.recipe import Recipe, Workshop
from training.show import CONSOLE, plot_losses, progress_bar
from training.tokenizer import Encoder, load, own_texts, vocabulary
from training.tokenizer import train as train_tokenizer

_N_FOR_TOKENIZER = 80_000
_N_SAMPLE = 400


def make_corpus(recipe: Recipe, workshop: Workshop) -> None:
    """Generate the corpus, train the tokenizer on a part of it and encode all of it.

    A run that begins with another's weights needs that one's tokenizer in the folder, and keeps it.
    """
    for name in server.unexplained(PLACES):
        CONSOLE.print(f"No entry explains the setting {name}.", style="yellow", markup=False, highlight=False)
    tokenizer = load(workshop.tokenizer) if recipe.weights else _tokenizer(recipe)
    tokenizer.save(str(workshop.tokenizer))
    with progress_bar("Generating", recipe.n_examples) as on_progress:
        data = encode(
            training_examples(recipe.n_examples, recipe.seed, recipe.more),
            Encoder(tokenizer),
            Random(recipe.seed + 2),
            share_long=recipe.share_long,
            progress=lambda n: on_progress(n, ""),
        )
    data.save(workshop.corpus)
    sample = training_examples(_N_SAMPLE, recipe.seed + 3)
    workshop.sample.write_text("\n\n".join(map(_as_text, sample)) + "\n", encoding="utf-8")
    CONSOLE.print(f"{len(data.lengths):,} conversations, {len(data.tokens):,} tokens", highlight=False)


def _tokenizer(recipe: Recipe) -> Tokenizer:
    CONSOLE.print("Training the tokenizer ...")
    some = itertools.islice(training_examples(_N_FOR_TOKENIZER, recipe.seed + 1), _N_FOR_TOKENIZER)
    texts = [turn.text for example in some for turn in example.turns]
    roles = ["system\nuser\nassistant\n"] * 1000
    tokenizer = train_tokenizer(texts + roles + own_texts(), recipe.shape.n_vocab)
    if tokenizer.get_vocab_size() != recipe.shape.n_vocab:
        raise TrainingError(
            f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {recipe.shape.n_vocab}"
        )
    return tokenizer


def train_model(recipe: Recipe, workshop: Workshop, weights: Mapping[str, Any] | None = None) -> None:
    """Train, or go on training, and draw the curve.

    Raises:
        TrainingError: there is no corpus, or the checkpoint is of another recipe.
        KeyboardInterrupt: after the checkpoint was written.
    """
    if not workshop.corpus.exists():
        raise TrainingError(
            f"there is no corpus in '{workshop.folder}'; run `python -m training corpus` first"
        )
    data = Dataset.load(workshop.corpus)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = Run.resume(recipe, workshop.checkpoint, device, weights)
    n_steps = n_steps_of(recipe, data)
    if run.step:
        CONSOLE.print(f"Going on from step {run.step} of {n_steps}.", highlight=False)
    recent = run.losses[-50:]
    with progress_bar("Training", n_steps) as on_progress:

        def each(step: int, _n: int, loss: float, _tokens: int) -> None:
            recent.append(loss)
            del recent[:-50]
            on_progress(step, f"loss {sum(recent) / len(recent):.4f}")

        try:
            train(run, data, workshop.checkpoint, each)
        finally:
            if run.losses:
                plot_losses(run.losses, workshop.curve)
                workshop.losses.write_text(json.dumps([round(loss, 5) for loss in run.losses]))
    if not math.isfinite(run.losses[-1]):
        raise TrainingError("the loss is no number any more; lower the learning rate and begin anew")


def n_steps_of(recipe: Recipe, data: Dataset) -> int:
    """Return how many steps a run of this recipe has."""
    steps = plan(
        data.lengths,
        recipe.seed,
        tokens_per_pass=recipe.tokens_per_pass,
        passes_per_step=recipe.passes_per_step,
    )
    return min(len(steps), recipe.n_steps or len(steps))


def load_model(recipe: Recipe, workshop: Workshop, mean_with: Sequence[Path] = ()) -> Decoder:
    """Return the model of the checkpoint, on the CPU: the mean of its weights and those of other checkpoints.

    The mean of neighbours answers better than each (Izmailov et al. 2018, stochastic weight averaging).

    Raises:
        TrainingError: there is none, or one is of another shape.
    """
    state = load_checkpoint(workshop.checkpoint, recipe, "cpu")
    if state is None:
        raise TrainingError(
            f"there is no checkpoint in '{workshop.folder}'; run `python -m training train` first"
        )
    model, all_weights = (
        Decoder(recipe.shape),
        [state["model"], *(read_weights(path)[0] for path in mean_with)],
    )
    try:
        model.load_state_dict(
            {name: torch.stack([weights[name] for weights in all_weights]).mean(0) for name in state["model"]}
        )
    except (KeyError, RuntimeError) as error:
        raise TrainingError(
            f"the checkpoints to take the mean of are of different shapes: {error}"
        ) from error
    return model.eval()


def export_model(recipe: Recipe, workshop: Workshop, mean_with: Sequence[Path] = ()) -> None:
    """Write the GGUF files: the one to ship, and those that the checks compare it with."""
    model, words = load_model(recipe, workshop, mean_with), vocabulary(load(workshop.tokenizer))
    for quant in ("F32", "Q8_0"):
        write_gguf(workshop.gguf(quant), model, words, quant)
        size = workshop.gguf(quant).stat().st_size
        CONSOLE.print(f"{workshop.gguf(quant)}: {size / 1e6:.2f} MB", highlight=False)


def _as_text(example: Example) -> str:
    head = f"# {example.kind}, {example.source}"
    return "\n".join([head, *(f"{turn.role}: {turn.text}" for turn in example.turns)])
