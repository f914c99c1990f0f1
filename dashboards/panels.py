"""The few kinds of panel our boards are made of, over Grafana's foundation SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import yaml
from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    DataSourceRef,
    GraphDrawStyle,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Query: TypeAlias = tuple[str, str]
"""(PromQL, legendFormat)."""
Colors: TypeAlias = Sequence[tuple[str, float | None]]
"""(colour, value from which on it holds), the first one from anywhere."""

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVER = 'instance=~"$instance"'
WHERE = f'{SERVER}, engine=~"$engine"'
OTHERS = " or ".join(
    f'cobali_info{{{WHERE}, {label}!~"${variable}"}}'
    for label, variable in (("model", "model_name"), ("node", "node"))
)
"""Engines that serve another model than the chosen ones, or on another machine.

Those are left out, instead of keeping the chosen ones: an engine that is away tells neither, and is what one
looks for.
"""
EACH, EACH_LEGEND = "by (instance, engine)", "{{instance}} engine {{engine}}"
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
HEIGHT = 8
WIDTH = 24
TOKENS, TOKEN_RATE, REQUESTS, SEQUENCES, SLOTS, CELLS, ENGINES, RESTARTS, CORES, DEVICES = (
    f"count:{word}"
    for word in ("tok", "tok/s", "req", "seq", "slots", "cells", "engines", "in range", "cores", "devices")
)
"""Grafana's custom units: scaled to K and M, with a word behind."""
WHOLE = frozenset({REQUESTS, SLOTS, ENGINES, DEVICES})
"""Of things that there are no halves of."""
HEAT_STEP = "20s"
"""Least step of a heatmap: four scrapes, with fewer of which Prometheus cannot tell an increase well."""
PLAIN: Colors = [("blue", None)]
"""Of numbers that say how much, not how well."""
OUTCOMES = {
    "stop": "green",
    "length": "blue",
    "cancelled": "text",
    "refused": "yellow",
    "bad_request": "purple",
    "deadline": "orange",
    "error": "red",
}
"""How requests end, each in its colour on every board."""
SILENT = "No such series here: let Prometheus scrape the server's /metrics and choose a longer time range."
IDLE = "No request in this time range: send the server one, or choose a longer range."


def _selector(name: str, labels: dict[str, str]) -> str:
    own = (f'{label}{"=~" if "|" in value else "="}"{value}"' for label, value in labels.items())
    return f"{name}{{{', '.join((WHERE, *own))}}}"


def _chosen(values: str) -> str:
    """Leave out engines of other models and machines, which only `cobali_info` tells."""
    return f"({values} unless on (instance, engine) ({OTHERS}))"


def series(name: str, **labels: str) -> str:
    """Select a metric of the chosen engines and by its own labels; "a|b" means either."""
    return _chosen(_selector(name, labels))


def over(function: str, name: str, window: str, **labels: str) -> str:
    """Apply a function of a range, such as `increase`, to a metric of the chosen engines."""
    return _chosen(f"{function}({_selector(name, labels)}[{window}])")


def rate(name: str, **labels: str) -> str:
    """Return the per-second rate of a counter over the scrape-aware interval."""
    return over("rate", name, "$__rate_interval", **labels)


def with_info(values: str, *labels: str) -> str:
    """Sum what every engine has by these labels, among which may be the `model` it serves and its `node`."""
    info = f"group by (instance, engine, model, node) ({series('cobali_info')})"
    return f"sum by ({', '.join(labels)}) ({values} * on (instance, engine) group_left (model, node) {info})"


def per_tick(total: str) -> str:
    """Divide a rate by the tick rate: a mean per tick."""
    return f"{total} / scalar(sum({rate('cobali_ticks_total')}))"


def quantile(q: float, name: str, **labels: str) -> str:
    """Return a percentile of a histogram over all chosen engines."""
    return f"histogram_quantile({q}, sum by (le) ({rate(f'{name}_bucket', **labels)}))"


def percentiles(name: str, **labels: str) -> list[Query]:
    """Return p50, p90 and p99 of a histogram."""
    return [(quantile(q, name, **labels), legend) for legend, q in QUANTILES]


def high_is_bad(amber: float, red: float) -> Colors:
    """Return the colours of what should stay low."""
    return [("green", None), ("orange", amber), ("red", red)]


def low_is_bad(red_below: float, amber_below: float) -> Colors:
    """Return the colours of what should stay high."""
    return [("red", None), ("orange", red_below), ("green", amber_below)]


def _empty(queries: Sequence[Query]) -> str:
    """Say what to do about an empty panel: histograms need requests, the rest only a scrape."""
    return IDLE if any("_bucket{" in expr for expr, _ in queries) else SILENT


def slo_of(rule: str) -> str:
    """Return the number that a recording rule of rules.yml says for an SLO: boards begin with the same."""
    groups = yaml.safe_load((Path(__file__).parent / "rules.yml").read_text(encoding="utf-8"))["groups"]
    (expr,) = (one["expr"] for group in groups for one in group["rules"] if one.get("record") == rule)
    return str(expr).removeprefix("vector(").removesuffix(")")


def _target(query: Query, index: int) -> prometheus.Dataquery:
    """Return a query; those of histograms ask for exemplars too, which lead to single requests."""
    expr, legend = query
    target = prometheus.Dataquery().datasource(SOURCE).expr(expr).legend_format(legend)
    if "_bucket{" in expr:
        target.exemplar(exemplar=True)
    return target.ref_id(chr(ord("A") + index)).range()


def _legend() -> common.VizLegendOptions:
    table = common.VizLegendOptions().show_legend(show_legend=True).placement(LegendPlacement.BOTTOM)
    return table.display_mode(LegendDisplayMode.TABLE).calcs(["lastNotNull", "max"])


def lines(
    title: str, text: str, unit: str, queries: Sequence[Query], *, columns: int = 2
) -> timeseries.Panel:
    """Return a line panel, `columns` of which fill a row; units are Grafana's ids or the ones above."""
    panel = timeseries.Panel().title(title).description(text).unit(unit).datasource(SOURCE)
    panel.height(HEIGHT).span(WIDTH // columns).min(0).no_value(_empty(queries))
    panel.draw_style(GraphDrawStyle.LINE).line_width(1).fill_opacity(8).show_points(VisibilityMode.NEVER)
    if unit in WHOLE:
        panel.decimals(0)
    panel.legend(_legend()).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index))
    return panel


def stacked(
    title: str, text: str, unit: str, queries: Sequence[Query], *, columns: int = 2
) -> timeseries.Panel:
    """Return a panel whose series add up."""
    panel = lines(title, text, unit, queries, columns=columns)
    return panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A")).fill_opacity(40)


def per_request(name: str) -> str:
    """Return the mean of a histogram over all ended requests, those without a value counted as 0."""
    return f"sum({rate(f'{name}_sum')}) / sum({rate('cobali_engine_e2e_seconds_count')})"


def limit_line(panel: timeseries.Panel, legend: str, color: str = "text") -> timeseries.Panel:
    """Draw one series as a dashed line, which takes no part in a stack."""
    properties = [
        DynamicConfigValue(id_val="custom.stacking", value={"mode": "none"}),
        DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]}),
        DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color}),
    ]
    return panel.override_by_name(legend, properties)


def painted(panel: timeseries.Panel, colors: Mapping[str, str]) -> timeseries.Panel:
    """Give series of these names colours that mean something."""
    for name, color in colors.items():
        fixed = DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
        panel.override_by_name(name, [fixed])
    return panel


def against_slo(
    title: str, text: str, queries: Sequence[Query], variable: str, *, columns: int = 2
) -> timeseries.Panel:
    """Return a line panel of seconds with the SLO of a board's variable as a dashed red line."""
    panel = lines(title, text, "s", [*queries, (f"vector(${variable})", "SLO")], columns=columns)
    return limit_line(panel, "SLO", "red")


def heat(title: str, text: str, unit: str, name: str, *, columns: int = 2) -> heatmap.Panel:
    """Return a heatmap of a histogram: how many values fell into which bucket when.

    It looks back over exactly one step, so that a value is in one cell only.
    """
    query = (f"sum by (le) ({over('increase', f'{name}_bucket', '$__interval')})", "{{le}}")
    text = f"{text} A cell covers one step of the time axis, at least {HEAT_STEP}."
    panel = heatmap.Panel().title(title).description(text).unit(unit).datasource(SOURCE)
    panel.height(HEIGHT).span(WIDTH // columns).no_value(IDLE)
    panel.calculate(calculate=False).cell_gap(1)
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.LE))
    panel.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LINEAR))
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Spectral").steps(64)
    panel.color(color.scale(HeatmapColorScale.EXPONENTIAL).exponent(0.5).reverse(reverse=False))
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    return panel.interval(HEAT_STEP).with_target(_target(query, 0).format(PromQueryFormat.HEATMAP))


def number(title: str, text: str, unit: str, query: Query, colors: Colors, *, columns: int = 6) -> stat.Panel:
    """Return one large number with its recent course behind it, and a colour that says whether it is well."""
    panel = stat.Panel().title(title).description(text).unit(unit).datasource(SOURCE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.no_value("no requests" if _empty([query]) == IDLE else "not scraped")
    steps = [Threshold(color=color, value=value) for color, value in colors]
    panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.color_mode(BigValueColorMode.VALUE)
    return panel.height(4).span(WIDTH // columns).with_target(_target(query, 0))


def alerts() -> dashboard.Panel:
    """Return the list of alerts that fire or are about to, of the chosen servers."""
    options = {
        "alertInstanceLabelFilter": '{job="cobali", instance=~"${instance:regex}"}',
        "alertName": "Cobali",
        "groupBy": [],
        "groupMode": "default",
        "maxItems": 20,
        "sortOrder": 3,  # by importance
        "stateFilter": {"error": True, "firing": True, "noData": False, "normal": False, "pending": True},
        "viewMode": "list",
    }
    text = "Alerts that fire or are about to; docs/alerts.md says what to do."
    panel = dashboard.Panel().type("alertlist").title("Alerts").description(text)
    return panel.height(HEIGHT).span(WIDTH // 3).datasource(SOURCE).options(options)


def restarts() -> dashboard.AnnotationQuery:
    """Return the marks at the times at which engines opened."""
    marks = dashboard.AnnotationQuery().name("Engine starts").datasource(SOURCE).enable(enable=True)
    marks.icon_color("orange").expr(f"{series('cobali_start_time_seconds')} * 1000").step("10s")
    marks.use_value_for_time(use_value_for_time=True).title_format("Engine {{engine}} started")
    return marks.text_format("{{instance}}")


def board(uid: str, title: str, text: str) -> dashboard.Dashboard:
    """Return an empty board: variables for data source, engines and SLOs, and the marks of restarts."""
    models = dashboard.QueryVariable("model_name").label("Model").datasource(SOURCE)
    models.query("label_values(cobali_info, model)")
    instances = dashboard.QueryVariable("instance").label("Instance").datasource(SOURCE)
    instances.query('label_values(cobali_info{model=~"$model_name"}, instance)')
    engines = dashboard.QueryVariable("engine").label("Engine").datasource(SOURCE)
    nodes = dashboard.QueryVariable("node").label("Node").datasource(SOURCE)
    nodes.query('label_values(cobali_info{model=~"$model_name", instance=~"$instance"}, node)')
    engines.query(
        'label_values(cobali_info{model=~"$model_name", instance=~"$instance", node=~"$node"}, engine)'
    )
    for variable in (models, instances, nodes, engines):
        variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
        variable.include_all(include_all=True).multi(multi=True)
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    made = dashboard.Dashboard(title).uid(uid).description(text).tags(["cobali"]).timezone("browser")
    others = dashboard.DashboardLink("cobali_ray").type(DashboardLinkType.DASHBOARDS).tags(["cobali"])
    made.link(others.include_vars(include_vars=True).keep_time(keep_time=True))
    made.time("now-30m", "now").refresh("5s").editable().tooltip(DashboardCursorSync.CROSSHAIR)
    for variable in (source, models, instances, nodes, engines):
        made.with_variable(variable)
    for name, label, rule in (
        ("slo_ttft", "TTFT SLO, s", "cobali:ttft_slo_seconds"),
        ("slo_itl", "ITL SLO, s", "cobali:itl_slo_seconds"),
    ):
        value = slo_of(rule)
        slo = dashboard.TextBoxVariable(name).label(label).default_value(value)
        made.with_variable(slo.current(VariableOption(selected=True, text=value, value=value)))
    return made.annotation(restarts())
