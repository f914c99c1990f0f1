"""Pictures of the boards: units, colours of thresholds, what an empty panel says, lines that only mark."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "dashboards"
N = 20
OPENED_S = 5.0


@pytest.fixture
def draw(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(str(HERE))
    yield importlib.import_module("draw")
    sys.modules.pop("draw", None)


def panel(title):
    found = json.loads((HERE / "overview.json").read_text(encoding="utf-8"))
    (one,) = (one for one in found["panels"] if one["title"] == title)
    return one | {"gridPos": one["gridPos"] | {"y": 0}}


def drawn(draw, title, answers):
    """Draw one panel as Prometheus's answers to its queries want it; return the figure and what was asked."""
    asked = []

    class Source(draw.Source):
        def ask(self, query, step_s):
            asked.append(query)
            metric, value = ({}, OPENED_S * 1000) if query == "marks" else answers(query)
            values = [[at * step_s, str(value)] for at in range(N)]
            return [] if value is None else [{"metric": metric, "values": values}]

    board = {"title": "one", "panels": [panel(title)], "annotations": {"list": [{"expr": "marks"}]}}
    figure = draw.draw(board, Source("", 0.0, float(N), 1.0, {}), None)
    return figure, asked


def texts(figure):
    return {text.get_text(): text.get_color() for axes in figure.axes for text in axes.texts}


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.00025, "s", "250 µs"),
        (1.5, "s", "1.5 s"),
        (0, "s", "0 s"),
        (0.256, "percentunit", "25.6%"),
        (3 << 30, "bytes", "3 GiB"),
        (0, "count:tok", "0 tok"),
        (1234, "count:tok/s", "1.23 K tok/s"),
        (2.5, "reqps", "2.5 req/s"),
        (math.nan, "s", "-"),
    ],
)
def test_values_have_their_unit(draw, value, unit, expected):
    assert draw.written(value, unit) == expected


@pytest.mark.parametrize(("value", "color"), [(0.1, "green"), (1, "orange"), (1.9, "orange"), (2.1, "red")])
def test_a_number_has_the_colour_of_its_threshold(draw, value, color):
    figure, asked = drawn(draw, "TTFT p90", lambda _: ({}, value))
    assert texts(figure)[draw.written(value, "s")] == draw.COLORS[color]
    assert any("cobali_ttft_seconds_bucket" in query for query in asked), "by the panel's own query"


def test_an_empty_panel_says_so_and_a_line_that_marks_does_not_fill_it(draw):
    figure, _ = drawn(draw, "TTFT", lambda query: ({}, 2.0 if query.startswith("vector") else None))
    assert any(text.startswith("No request") for text in texts(figure))
    assert "no GPU" in texts(drawn(draw, "GPU use", lambda _: ({}, None))[0])


def test_a_line_has_its_name_the_slo_is_dashed_and_a_restart_is_marked(draw):
    figure, _ = drawn(draw, "TTFT", lambda query: ({}, 2.0 if query.startswith("vector") else 0.5))
    lines = [line for axes in figure.axes for child in axes.child_axes for line in child.lines]
    *percentiles, slo, mark = lines
    assert [line.get_linestyle() for line in percentiles] == ["-", "-", "-"]
    assert (slo.get_linestyle(), slo.get_color()) == ("--", draw.COLORS["red"])
    assert (mark.get_linestyle(), list(mark.get_xdata())) == (":", [OPENED_S, OPENED_S]), "an engine opened"
    assert {"p50  500 ms, max 500 ms", "SLO  2 s, max 2 s"} <= set(texts(figure))


def test_a_variable_of_the_board_is_filled_in(draw, monkeypatch):
    asked = []

    def answer(request, **_):
        asked.append(request.data.decode())
        raise draw.urllib.error.URLError("nobody there")

    monkeypatch.setattr(draw.urllib.request, "urlopen", answer)
    source = draw.Source("http://127.0.0.1:1", 0.0, 60.0, 5.0, {"engine": "7"})
    with pytest.raises(draw.urllib.error.URLError):
        source.ask('rate(x{engine=~"$engine"}[$__rate_interval]) + y{z="${engine:regex}"}', 10.0)
    assert "%22%24" not in asked[0]
    assert "engine%3D~%227%22" in asked[0]
    assert "%5B30s%5D" in asked[0], "four scrapes and a step"
