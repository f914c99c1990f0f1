"""What a run begins with: weights and tokenizer of another run's checkpoint, or of an exported GGUF file."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, quants

from cobali_ray.errors import CobaliError
from cobali_ray.models.registry import resolve
from cobali_workloads.models.vocabulary import CopiedVocabulary
from training.checkpoint import load_weights
from training.errors import TrainingError
from training.export import model_name
from training.model import Shape
from training.recipe import Workshop
from training.tokenizer import of_vocabulary

_BUILTIN, _GGUF = "builtin:", ".gguf"


def place(name: str) -> Path:
    """Return where the weights lie that a command line names: `builtin:tiny`, or a path.

    Raises:
        TrainingError: there is no such model.
    """
    if not name.startswith(_BUILTIN):
        return Path(name)
    try:
        return resolve(name)
    except CobaliError as error:
        raise TrainingError(str(error)) from error


def read_weights(path: Path) -> tuple[Mapping[str, Any], str]:
    """Read weights by the model's own names, and a digest of their file; a GGUF file's are rounded.

    Raises:
        TrainingError: there is no such file, or it holds something else.
    """
    if path.suffix != _GGUF:
        return load_weights(path)
    try:
        tensors = GGUFReader(path).tensors
        weights = {
            model_name(tensor.name): torch.from_numpy(
                quants.dequantize(tensor.data, tensor.tensor_type).copy()
            )
            for tensor in tensors
        }
        return weights, hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (OSError, LookupError, ValueError, NotImplementedError) as error:
        raise TrainingError(f"'{path}' is no GGUF file to begin with: {error}") from error


def take_tokenizer(path: Path, shape: Shape, workshop: Workshop) -> None:
    """Put the tokenizer that belongs to the weights at `path` into the folder.

    Raises:
        TrainingError: it cannot be read, or has another number of tokens.
    """
    try:
        if path.suffix != _GGUF:
            shutil.copy(path.with_name(workshop.tokenizer.name), workshop.tokenizer)
            return
        of_vocabulary(CopiedVocabulary(path).load(shape.n_vocab)).save(str(workshop.tokenizer))
    except (OSError, CobaliError) as error:
        raise TrainingError(f"the tokenizer of '{path}' cannot be read: {error}") from error
