"""Collections of schemas: Iglu Central's and a test suite's, which lie here, made ones, folders of others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.schemas.made import make

HERE = Path(__file__).parent
IGLU = HERE / "iglu-central" / "schemas.jsonl.gz"
SUITE = HERE / "json-schema-test-suite" / "draft2020-12.jsonl.gz"


def iglu_central() -> list[Any]:
    """Return the schemas of Iglu Central that JSONSchemaBench has word for word."""
    return [one["schema"] for one in _lines(IGLU)]


def json_schema_test_suite() -> list[dict[str, Any]]:
    """Return the cases of the JSON Schema Test Suite: a schema, and tests with data, valid or not."""
    return list(_lines(SUITE))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def made(n: int) -> list[Any]:
    """Return as many made ones."""
    return [make(seed) for seed in range(n)]


def folders(root: Path, n_most: int, *, seed: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield for each folder below `root` its name and schemas, at most so many, drawn from the seed."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        paths = sorted(folder.glob("*.json"))
        Random(seed).shuffle(paths)
        yield folder.name, [json.loads(path.read_text(encoding="utf-8")) for path in paths[:n_most]]
