"""Ask the server of this tree for the facts that the corpus states, and write them where it reads them."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings
from training.corpus.server_facts import TABLE, observed
from training.show import CONSOLE

PLACE = Path(__file__).parent / "corpus" / "tables" / TABLE


def write_facts() -> None:
    """Write the facts.

    Raises:
        TrainingError: the server does not start.
    """
    from training.evaluate import served  # it needs PyTorch, and comparing does not

    with (
        tempfile.TemporaryDirectory() as folder,
        served(resolve("builtin:tiny"), Path(folder) / "server.log") as url,
    ):
        facts = observed_at(url)
    PLACE.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    CONSOLE.print(f"{len(facts)} facts. If one has changed, train builtin:tiny again.", highlight=False)


def observed_at(url: str) -> dict[str, Any]:
    """Return the facts of the server at `url`."""
    return observed(_json(f"{url}/v1/models"), _json(f"{url}/openapi.json"), EngineSettings().values())


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - loopback
        return json.load(answer)
