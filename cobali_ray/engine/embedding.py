"""Embedding: computes texts in a pass of their own, and makes events of their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from cobali_ray.backend.port import Embedder
from cobali_ray.core.request.embedding import EmbeddingRequest, TextPiece
from cobali_ray.core.request.events import Vectors
from cobali_ray.errors import BackendError, CobaliError, InternalError


def embed(
    embedder: Embedder, pieces: Sequence[TextPiece]
) -> tuple[list[tuple[str, Vectors]], dict[str, CobaliError]]:
    """Compute these pieces; return vectors with the addresses they go to, and which requests failed.

    A pass that fails ends the requests in it, a vector that is no number its own, and neither any other.
    """
    failed: dict[str, CobaliError] = {}
    try:
        rows = embedder.embed(pieces)
    except BackendError as error:
        return [], {piece.request.request_id: InternalError(str(error)) for piece in pieces}
    by_request: dict[EmbeddingRequest, tuple[list[int], list[bytes]]] = {}
    for piece, row in zip(pieces, rows, strict=True):
        if not piece.last:
            continue
        if not isfinite(float(np.dot(row, row))):
            failed[piece.request.request_id] = InternalError(f"text {piece.text_id} has no finite vector")
            continue
        texts, data = by_request.setdefault(piece.request, ([], []))
        texts.append(piece.text_id)
        data.append(row.astype("<f4").tobytes())
    vectors = [
        (request.reply_to, Vectors(request.request_id, b"".join(data), tuple(texts)))
        for request, (texts, data) in by_request.items()
        if request.request_id not in failed
    ]
    return vectors, failed
