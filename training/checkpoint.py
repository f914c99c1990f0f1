"""Checkpoints: written beside the old one and moved over it, so that one of them is always whole."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from training.errors import TrainingError
from training.recipe import Recipe


def save_checkpoint(path: Path, state: dict[str, Any], recipe: Recipe) -> None:
    """Write `state` to `path` in one step; a write that fails leaves the old file alone.

    Raises:
        TrainingError: there is no room.
    """
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            torch.save({**state, "recipe": recipe.digest()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TrainingError(
            f"the checkpoint '{path}' could not be written ({error.strerror}); the one before is still whole"
        ) from error


def load_weights(path: Path) -> tuple[dict[str, Any], str]:
    """Read the weights of any run's checkpoint, and a digest of its file.

    Raises:
        TrainingError: there is no such file, or it is no checkpoint.
    """
    state = _read(path, "cpu") if path.exists() else {}
    if "model" not in state:
        raise TrainingError(f"there is no checkpoint to begin with at '{path}'")
    return state["model"], hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load_checkpoint(path: Path, recipe: Recipe, device: str) -> dict[str, Any] | None:
    """Read it; None if there is none.

    Raises:
        TrainingError: it is of another recipe, or damaged.
    """
    if not path.exists():
        return None
    state = _read(path, device)
    if state.get("recipe") != recipe.digest():
        raise TrainingError(
            f"the checkpoint '{path}' is of another recipe; delete it or choose another folder"
        )
    return state


def _read(path: Path, device: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"the checkpoint '{path}' is damaged ({error}); delete it to begin anew"
        ) from error
    return state
