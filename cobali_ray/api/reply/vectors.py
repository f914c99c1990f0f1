"""Rows of numbers -> the bodies of answers about texts. Pure; all of it runs in threads."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cobali_ray.core.request.events import Vectors
from cobali_ray.errors import EventsLostError

N_VECTORS_PER_PART = 64
"""Vectors that are written at once: the next part is made when the client has taken this one."""

Rows = NDArray[np.float32]


class VectorRows:
    """The rows of one request, as they arrive. A text that is embedded twice has the row that came last."""

    def __init__(self, n_texts: int, width: int) -> None:
        self._rows = np.zeros((n_texts, width), np.float32)
        self._here = np.zeros(n_texts, bool)

    def add(self, vectors: Vectors) -> None:
        texts = list(vectors.texts)
        self._rows[texts] = np.frombuffer(vectors.rows, "<f4").reshape(len(texts), -1)
        self._here[texts] = True

    def whole(self) -> Rows:
        """Return all rows. Raises EventsLostError where one never came."""
        if not self._here.all():
            raise EventsLostError
        return self._rows


def unit(rows: Rows, dimensions: int | None = None) -> Rows:
    """Return vectors of length 1, of the first `dimensions` numbers of each row."""
    rows = rows[:, :dimensions]
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    vectors: Rows = (rows / lengths).astype(np.float32)
    return vectors


def logistic(rows: Rows) -> Rows:
    return (1 / (1 + np.exp(-rows.astype(np.float64)))).astype(np.float32)


def usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def vectors_body(rows: Rows, model: str, n_tokens: int, *, packed: bool) -> Iterator[bytes]:
    """Yield OpenAI's list of embeddings; `packed`: each in base64."""
    yield b'{"object":"list","model":%b,"data":[' % orjson.dumps(model)
    yield from in_parts(
        rows, lambda i, row: {"object": "embedding", "index": i, "embedding": _packed(row) if packed else row}
    )
    yield b'],"usage":%b}' % orjson.dumps(usage(n_tokens))


def in_parts(rows: Rows, item: Callable[[int, Rows], object]) -> Iterator[bytes]:
    """Yield what stands between the brackets of a list, an item for each vector, some at a time."""
    for start in range(0, len(rows), N_VECTORS_PER_PART):
        items = [item(i, row) for i, row in enumerate(rows[start : start + N_VECTORS_PER_PART], start)]
        text = orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"," + text if start else text


def _packed(row: Rows) -> str:
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()


def ranking(scores: Sequence[float], top_n: int | None) -> list[tuple[int, float]]:
    """Return number and score of each document, the best first; equal ones as they came."""
    return sorted(enumerate(scores), key=lambda pair: -pair[1])[:top_n]


def jina_body(
    ranked: Sequence[tuple[int, float]],
    call_id: str,
    model: str,
    n_tokens: int,
    documents: Sequence[str] | None,
) -> bytes:
    """Return a ranking as Jina, Cohere and llama-server have it; `documents` are those to give back."""
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": score} for i, score in ranked]
    if documents is not None:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    body = {"id": call_id, "object": "list", "model": model, "usage": usage(n_tokens), "results": results}
    return orjson.dumps(body)


def tei_body(ranked: Sequence[tuple[int, float]], documents: Sequence[str] | None) -> bytes:
    return orjson.dumps(
        [{"index": i, "score": score} | ({"text": documents[i]} if documents else {}) for i, score in ranked]
    )


def scores_body(scores: Sequence[float], call_id: str, created: int, model: str, n_tokens: int) -> bytes:
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
    return orjson.dumps(
        {
            "id": call_id,
            "object": "list",
            "created": created,
            "model": model,
            "data": data,
            "usage": usage(n_tokens),
        }
    )
