"""Collections of schemas: Iglu Central's, which lie beside this file, made ones, and folders of others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.schemas.made import make

IGLU = Path(__file__).with_name("iglu-central") / "schemas.jsonl.gz"


def iglu_central() -> list[Any]:
    """Return the schemas of Iglu Central that JSONSchemaBench has word for word."""
    with gzip.open(IGLU, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["schema"] for line in lines]


def made(n: int) -> list[Any]:
    """Return as many made ones."""
    return [make(seed) for seed in range(n)]


def folders(root: Path, n_most: int, *, seed: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield for each folder below `root` its name and schemas, at most so many, drawn from the seed."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        paths = sorted(folder.glob("*.json"))
        Random(seed).shuffle(paths)
        yield folder.name, [json.loads(path.read_text(encoding="utf-8")) for path in paths[:n_most]]
