"""llama.cpp as a loaded library: one log callback, one initialisation."""

from __future__ import annotations

import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

_log = structlog.get_logger(__name__)

_LEVELS = {3: "debug", 4: "error"}
"""How its warnings and errors are logged: a warning says nothing that an operator could change, and what it
means for us is ours to say."""
_MAX_ERRORS = 8


class _LibraryLog:
    """Joins llama.cpp's log fragments to lines; warnings and errors become log events."""

    def __init__(self) -> None:
        self._line = ""
        self._level = 0
        self.errors: deque[str] = deque(maxlen=_MAX_ERRORS)

    def __call__(self, level: int, text: bytes, _data: Any) -> None:
        if level != 5:  # GGML_LOG_LEVEL_CONT goes on with the line before
            self._level = level
        self._line += text.decode("utf-8", "replace")
        if not self._line.endswith("\n"):
            return
        line, self._line = self._line.strip(), ""
        name = _LEVELS.get(self._level)
        if name == "error":
            self.errors.append(line)
        if line and name is not None:
            getattr(_log, name)("llama_cpp", message=line)


@functools.cache
def load() -> Any:
    """Import llama_cpp, route its log and initialise it, once per process."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
    import llama_cpp

    llama_cpp.llama_log_set(_callback(), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    if (cuda := cuda_part(Path(llama_cpp.__file__).parent)).exists():
        _add(cuda)
    return llama_cpp


def cuda_part(package: Path) -> Path:
    """Return where `make cuda-build` lays llama.cpp's part for NVIDIA GPUs, in the folder of its package.

    In `lib` itself there is one of the same name if llama.cpp was compiled with CUDA as a whole.
    """
    return package / "lib" / "added" / "libggml-cuda.so"


def _add(part: Path) -> None:
    """Have llama.cpp use a part that was compiled by itself; where it cannot be loaded, go on without."""
    from llama_cpp import _ggml

    try:
        ctypes.CDLL(str(part))  # llama.cpp itself does not say why it could not
    except OSError as error:
        why = f"layers stay on the CPU, as {error} (libcuda.so.1 comes with NVIDIA's driver)"
        _log.warning("no_cuda", detail=why)
        return
    add = _ggml.libggml.ggml_backend_load
    add.restype, add.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    add(str(part).encode())


@functools.cache
def load_mtmd() -> Any:
    """Do the same for what reads images; its log is kept apart, since other threads write it.

    Raises FileNotFoundError where llama.cpp was built without it.
    """
    load()
    from llama_cpp import mtmd_cpp

    mtmd_cpp.mtmd_helper_log_set(_callback("mtmd"), ctypes.c_void_p(0))
    return mtmd_cpp


@functools.cache
def _logger(of: str = "llama") -> _LibraryLog:
    del of
    return _LibraryLog()


@functools.cache
def _callback(of: str = "llama") -> Any:
    # Cached because llama.cpp keeps the pointer and ctypes does not keep the object.
    import llama_cpp

    return llama_cpp.llama_log_callback(_logger(of))


def metadata(lc: Any, model: Any, key: str) -> str:
    """Return the text of one key of a model's file; empty where there is none."""
    buffer = ctypes.create_string_buffer(128)
    n = lc.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n > 0 else ""


def raw_batch(
    lc: Any,
    *,
    position: NDArray[np.int32],
    seq: NDArray[np.int32],
    output: NDArray[np.int8],
    token: NDArray[np.int32] | None = None,
    values: NDArray[np.float32] | None = None,
) -> Any:
    """Return a batch as llama.cpp reads it, over the memory of these arrays: tokens, or rows of values.

    `seq` has the sequence id of each, and there are as many; `output` is 1 where its logits are needed.
    """
    n_seq = np.ones(len(seq), np.int32)
    rows = seq.ctypes.data + seq.itemsize * np.arange(len(seq), dtype=np.uintp)

    def at(array: NDArray[Any] | None, kind: Any) -> Any:
        return None if array is None else ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    raw = lc.llama_batch(
        len(seq),
        at(token, lc.llama_token),
        at(values, ctypes.c_float),
        at(position, lc.llama_pos),
        at(n_seq, ctypes.c_int32),
        at(rows, ctypes.POINTER(lc.llama_seq_id)),
        at(output, ctypes.c_int8),
    )
    raw.arrays = (token, values, position, n_seq, rows, seq, output)  # ctypes keeps none of them alive
    return raw


def copy_sequence(
    lc: Any,
    context: Any,
    donor: int,
    seq: int,
    *,
    flags: int = 0,
    room: Callable[[int], NDArray[np.uint8]] = lambda n_bytes: np.empty(n_bytes, np.uint8),
) -> bool:
    """Have an empty sequence hold what another does, by way of memory that `room` gives; say if it does."""
    state = room(size := int(lc.llama_state_seq_get_size_ext(context, donor, flags)))
    pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return bool(
        lc.llama_state_seq_get_data_ext(context, pointer, size, donor, flags) == size
        and lc.llama_state_seq_set_data_ext(context, pointer, size, seq, flags) == size
    )


def forget_errors(of: str = "llama") -> None:
    """Begin a call whose failure `errors` shall explain."""
    _logger(of).errors.clear()


def errors(of: str = "llama") -> str:
    """Return what llama.cpp logged as errors since `forget_errors`, the root of the trouble first.

    Its calls only return NULL or a number, and the last line it logs says no more than that.
    """
    return "; ".join(_logger(of).errors) or "no reason given"
