"""Projector: images turned into rows of embeddings, by llama.cpp's mtmd.

How many rows an image becomes, between a few tokens, is known once it is decoded and cut to size, which any
thread may do. The rows themselves are a forward pass of the projector, one at a time, that cannot be
stopped. mtmd decodes PNG, JPEG and GIF itself (stb_image). It would take sound too, and hand what it does not
know to ffmpeg: callers have checked the file's first bytes and its size, and no ffmpeg is found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend import library
from cobali_ray.backend.batch import ImagePart, ImageRows
from cobali_ray.errors import BackendError, ConfigError

_IMAGE = 1
_NO_PROGRAMS = b"/dev/null"


class Projector:
    """The projector beside a model. `read` is for any thread, `encode` for one at a time."""

    def __init__(self, model: Any, path: Path, *, n_threads: int, on_gpu: bool) -> None:
        try:
            self._mtmd = mtmd = library.load_mtmd()
        except FileNotFoundError:
            why = "llama.cpp was built without mtmd; `make install` builds it"
            raise ConfigError("mmproj", why) from None
        self._context = None
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = on_gpu, n_threads, False
        library.forget_errors("mtmd")
        self._context = context = mtmd.mtmd_init_from_file(str(path).encode(), model, params)
        if not context:
            raise ConfigError("mmproj", f"llama.cpp cannot load {path}: {library.errors('mtmd')}")
        if not mtmd.mtmd_support_vision(context):
            self.close()
            raise ConfigError("mmproj", f"{path} is for sound; only images are supported")
        self._opening = mtmd.mtmd_helper_init_opt_default()
        self._opening.video_params.ffmpeg_bin_dir = _NO_PROGRAMS
        self.spatial = bool(mtmd.mtmd_decode_use_mrope(context))
        """Whether rows share positions, so that slots with an image cannot be kept outside the cache."""
        self.causal = not mtmd.mtmd_decode_use_non_causal(context, None)
        """Whether rows see only those before them."""
        self._width = int(library.load().llama_model_n_embd_inp(model))

    @property
    def whole(self) -> bool:
        """Whether one pass must compute all rows of a part."""
        return self.spatial or not self.causal

    def read(self, image: bytes) -> list[ImagePart] | None:
        """Return the parts of an image; None if it cannot be decoded."""
        mtmd = self._mtmd
        with self._chunks(image) as chunks:
            if chunks is None:
                return None
            return [
                ImagePart((), int(mtmd.mtmd_input_chunk_get_n_tokens(chunk)))
                if mtmd.mtmd_input_chunk_get_type(chunk) == _IMAGE
                else ImagePart(self._tokens(chunk))
                for chunk in chunks
            ]

    def encode(self, image: bytes) -> list[ImageRows]:
        """Return the rows of each part that has any. Raises BackendError."""
        mtmd = self._mtmd
        with self._chunks(image) as chunks:
            if chunks is None:
                raise BackendError("an image cannot be decoded any more")
            return [
                self._encode(chunk) for chunk in chunks if mtmd.mtmd_input_chunk_get_type(chunk) == _IMAGE
            ]

    def close(self) -> None:
        if self._context:
            self._mtmd.mtmd_free(self._context)
        self._context = None

    def _encode(self, chunk: Any) -> ImageRows:
        mtmd, n = self._mtmd, int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        library.forget_errors("mtmd")
        if mtmd.mtmd_encode_chunk(self._context, chunk) != 0:
            raise BackendError(f"llama.cpp cannot encode an image: {library.errors('mtmd')}")
        rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._context), (n, self._width))
        return ImageRows(
            rows.copy(),
            self._places(chunk, n) if self.spatial else None,
            int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            self.causal,
        )

    def _places(self, chunk: Any, n: int) -> NDArray[np.int32]:
        positions = (self._mtmd.mtmd_decoder_pos * n)()
        image = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        self._mtmd.mtmd_helper_image_get_decoder_pos(image, 0, positions)
        t, x, y, z = np.frombuffer(positions, np.uint32).reshape(n, 4).T.astype(np.int32)
        return np.ascontiguousarray([t, y, x, z])  # the order in which llama.cpp takes them

    def _tokens(self, chunk: Any) -> tuple[int, ...]:
        n = ctypes.c_size_t()
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return tuple(tokens[: n.value])

    @contextmanager
    def _chunks(self, image: bytes) -> Iterator[list[Any] | None]:
        """Decode an image and cut it to size; yield its parts, which are freed afterwards, or None."""
        mtmd = self._mtmd
        data = (ctypes.c_uint8 * len(image)).from_buffer_copy(image)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(self._context, data, len(image), False, self._opening)
        if not bitmap:
            yield None
            return
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            marker = mtmd.mtmd_default_marker()
            text = mtmd.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            if mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                yield None
                return
            yield [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
