"""Does the file compute what the model computes? Logits and greedy answers of llama.cpp against PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.answer import greedy
from training.corpus.build import held_out_set
from training.errors import TrainingError
from training.model import Decoder
from training.recipe import Recipe, Workshop
from training.show import CONSOLE
from training.steps import load_model
from training.tokenizer import Encoder, load

LEAST_COSINE = 0.999
LEAST_SAME = 0.95
_N_LOGITS = 64
_N_GREEDY = 200
_N_MOST = 120


def check_export(recipe: Recipe, workshop: Workshop, mean_with: Sequence[Path] = ()) -> None:
    """Compare on held-out prompts, and put the numbers into the report.

    Raises:
        TrainingError: the files do not agree with the model well enough.
    """
    model, encoder = load_model(recipe, workshop, mean_with), Encoder(load(workshop.tokenizer))
    questions = held_out_set()
    prompts = [encoder.prompt(example.prompt) for example in questions]
    some = prompts[:: max(1, len(prompts) // _N_LOGITS)]
    exact, shipped = (
        Llama(workshop.gguf("F32"), recipe.shape.n_ctx),
        Llama(workshop.gguf("Q8_0"), recipe.shape.n_ctx),
    )
    same_ids = all(
        shipped.tokenise(_rendered(example.prompt)) == prompt
        for example, prompt in zip(questions, prompts, strict=True)
    )
    cosine = min(_cosines(model, exact, some))
    cosine_q8 = min(_cosines(model, shipped, some))
    greedy_prompts = prompts[:: max(1, len(prompts) // _N_GREEDY)]
    ours = greedy(model, greedy_prompts, end=encoder.end, n_most=_N_MOST)
    theirs = [shipped.greedy(prompt, end=encoder.end, n_most=_N_MOST) for prompt in greedy_prompts]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(greedy_prompts)
    agreement = {
        "same_ids": same_ids,
        "least_cosine_f32": round(cosine, 6),
        "least_cosine_q8_0": round(cosine_q8, 6),
        "same_greedy_answers": round(same, 4),
        "n_greedy_prompts": len(greedy_prompts),
    }
    note(workshop.report, export=agreement)
    CONSOLE.print(agreement)
    if not same_ids or cosine < LEAST_COSINE or same < LEAST_SAME:
        raise TrainingError(f"the exported file does not agree with the model: {agreement}")


def note(path: Path, **findings: object) -> None:
    """Add findings to the report."""
    report = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**report, **findings}, indent=2) + "\n")


def _rendered(turns: Sequence[object]) -> str:
    from training.corpus.example import Turn

    chat = "".join(f"<|im_start|>{t.role}\n{t.text}<|im_end|>\n" for t in turns if isinstance(t, Turn))
    return f"{chat}<|im_start|>assistant\n"


def _cosines(model: Decoder, llama: Llama, prompts: Sequence[Sequence[int]]) -> list[float]:
    cosines = []
    for prompt in prompts:
        with torch.inference_mode():
            ours = model.logits(model(torch.tensor([prompt])))[0].numpy().astype(np.float64)
        theirs = llama.logits(prompt).astype(np.float64)
        dots = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        cosines.append(float(dots.min()))
    return cosines


class Llama:
    """llama.cpp on one file, one sequence at a time, without anything of the server between."""

    def __init__(self, path: Path, n_ctx: int) -> None:
        import llama_cpp

        self._llama = llama_cpp.Llama(str(path), n_ctx=n_ctx, n_batch=512, logits_all=True, verbose=False)

    def tokenise(self, text: str) -> list[int]:
        """Return the ids of a text with control tokens in it."""
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=True))

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        """Return one row for each token of the prompt."""
        self._llama.reset()
        self._llama.eval(list(prompt))
        rows: NDArray[np.float32] = self._llama.scores[: len(prompt)].copy()
        return rows

    def greedy(self, prompt: Sequence[int], *, end: int, n_most: int) -> list[int]:
        """Continue the prompt by the likeliest tokens; `end` is not returned."""
        self._llama.reset()
        self._llama.eval(list(prompt))
        answer: list[int] = []
        while len(answer) < n_most:
            token = int(self._llama.scores[self._llama.n_tokens - 1].argmax())
            if token == end:
                break
            answer.append(token)
            self._llama.eval([token])
        return answer
