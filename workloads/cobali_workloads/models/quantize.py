"""Requantise a GGUF file with llama.cpp, with the mix of types that llama.cpp itself picks for each tensor.

llama.cpp does it in a process of its own: an assertion in there must not end the caller, its log goes where
we can quote from it instead of through the caller's log callback, and its memory is gone afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from cobali_ray.errors import BackendError
from cobali_ray.signals import end_with_parent

if TYPE_CHECKING:
    from pathlib import Path

_FILE_TYPES = {"Q5_K_M": 17, "Q4_K_M": 15, "Q6_K": 18, "Q8_0": 7, "Q4_0": 2}
"""llama.cpp's `llama_ftype`; it counts most of the tensors, not all."""


def quantize_file(source: Path, target: Path, file_type: str, *, n_threads: int = 0) -> None:
    """Write `source` as `target` in another file type, e.g. Q5_K_M; the same input gives the same bytes.

    `n_threads` 0 takes all cores; their number does not change the result. `source` may be quantised already.

    Raises:
        BackendError: llama.cpp does not know the type or did not finish; with the end of its log.
    """
    if file_type not in _FILE_TYPES:
        raise BackendError(f"file type '{file_type}' is none of {', '.join(_FILE_TYPES)}")
    command = [sys.executable, "-m", __name__, str(source), str(target), file_type, str(n_threads)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(  # noqa: S603 - our own module; the arguments pass no shell
        command, env=environ, check=False, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        log = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise BackendError(
            f"llama.cpp could not quantise '{source}' to {file_type} (exit {done.returncode}): {log}"
        )


def _quantize_here(source: str, target: str, file_type: str, n_threads: str) -> int:
    end_with_parent()
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[file_type]
    params.nthread = int(n_threads)
    params.allow_requantize = True
    status: int = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params)
    return status


if __name__ == "__main__":
    sys.exit(_quantize_here(*sys.argv[1:5]))
