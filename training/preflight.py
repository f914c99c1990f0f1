"""What must be there before hours are spent: PyTorch, room on the disk, a folder to write to."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from training.errors import TrainingError

NEEDED_BYTES = 600 << 20
"""The corpus, two checkpoints while one replaces the other, and three GGUF files, generously."""


def require_torch() -> None:
    """Check that PyTorch can be imported.

    Raises:
        TrainingError: it is not installed, or a library that it needs is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise TrainingError(
            "PyTorch is not installed; `make train` installs it, or: "
            ".venv/bin/uv pip install --no-deps -r training/requirements.txt"
        )
    try:
        import torch  # noqa: F401 - only to see whether it loads
    except (ImportError, OSError) as error:
        raise TrainingError(
            f"PyTorch is installed but does not load ({error}); install training/requirements.txt again"
        ) from error


def require_room(folder: Path, needed: int = NEEDED_BYTES) -> None:
    """Check that `folder` can be made and has room.

    Raises:
        TrainingError: it cannot be written, or the disk is too full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise TrainingError(f"the folder '{folder}' cannot be made: {error.strerror}") from error
    if free < needed:
        raise TrainingError(
            f"the disk of '{folder}' has {free / 1e6:.0f} MB left and training needs {needed / 1e6:.0f} MB; "
            "make room or choose another folder with --folder"
        )
