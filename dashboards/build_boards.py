"""Write the boards next to this file: `python dashboards/build_boards.py`.

The JSON is committed and rebuilds byte for byte; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path

import board_overview
import board_requests
import board_tick_anatomy
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

HERE = Path(__file__).parent
BOARDS = {
    "overview.json": board_overview.build,
    "tick_anatomy.json": board_tick_anatomy.build,
    "requests.json": board_requests.build,
}


def to_json(made: Dashboard) -> str:
    """Return a board as classic dashboard JSON; panels are numbered in order."""
    model = made.build()
    for number, panel in enumerate(model.panels or [], start=1):
        panel.id_val = number
    for variable in (model.templating and model.templating.list_val) or []:
        variable.auto = variable.auto_min = variable.auto_count = None  # an interval's, not in the schema
    return json.dumps(model, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write every board."""
    for name, build in BOARDS.items():
        (HERE / name).write_text(to_json(build()), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
