"""Panels, variables and the frame of a dashboard: what the SDK has, with the choices that ours share.

Widths are of Grafana's 24 columns; those of a row add up to 24. Intervals are Grafana's `$__rate_interval`, so that a
panel suits any distance between two scrapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "rljob"
HEIGHT = 7
RECENT = "$__rate_interval"

Panel: TypeAlias = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `uid` is its place in a Grafana: links name it."""

    uid: str
    title: str
    description: str
    variables: Sequence[builders.DatasourceVariable | builders.QueryVariable]
    rows: Sequence[Row]
    marks: Sequence[Query] = field(default_factory=tuple)
    """Drawn as lines through all panels."""


def lines(
    title: str,
    text: str,
    unit: str,
    *queries: Query,
    width: int = 8,
    stacked: bool = False,
    least: float | None = 0,
    most: float | None = None,
    without: str | None = None,
) -> timeseries.Panel:
    """Values over time. `least` and `most` are the ends of the axis; None: as the values want it.

    `without` is shown where there is no series; None: Grafana's own words.
    """
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .unit(unit)
        .fill_opacity(10)
        .show_points(common.VisibilityMode.NEVER)
        .legend(legend.placement(common.LegendPlacement.BOTTOM).show_legend(True).calcs([]))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if without is not None:
        panel = panel.no_value(without)
    _ask(panel, queries)
    return panel.span(width).height(HEIGHT)


def figure(title: str, text: str, unit: str, query: Query, *, names: bool = False) -> stat.Panel:
    """The value of now, large; `names` shows which series it is instead."""
    mode = common.BigValueTextMode.NAME if names else common.BigValueTextMode.VALUE
    panel = (
        stat.Panel()
        .title(title)
        .description(text)
        .unit(unit)
        .text_mode(mode)
        .color_mode(common.BigValueColorMode.NONE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    asked = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).instant()
    return panel.with_target(asked.ref_id("A").datasource(SOURCE)).datasource(SOURCE).span(4).height(4)


def states(title: str, text: str, query: Query) -> statetimeline.Panel:
    """When something held: a bar for each series, while it is 1."""
    texts = {
        "0": models.ValueMappingResult(text=" ", color="transparent"),
        "1": models.ValueMappingResult(text="yes", color="blue"),
    }
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(text)
        .mappings([models.ValueMap(options=texts)])
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .legend(common_builders.VizLegendOptions().show_legend(False).calcs([]))
    )
    _ask(panel, [query])
    return panel.span(8).height(HEIGHT)


def rows_of_now(title: str, text: str, columns: Sequence[tuple[str, str, str]], link: str) -> table.Panel:
    """A row for each job: `columns` are (expression, title, unit), joined by the labels that they have in common."""
    names = {f"Value #{_letter(index)}": title for index, (_, title, _) in enumerate(columns)}
    shown = {"excludeByName": {"Time": True, "Value #A": True}, "renameByName": names, "indexByName": {}}
    panel = (
        table.Panel()
        .title(title)
        .description(text)
        .show_header(True)
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(models.DataTransformerConfig(id_val="organize", options=shown))
        .override_by_name("job", [models.DynamicConfigValue("links", [{"title": "Open the job", "url": link}])])
    )
    for _, name, unit in columns:
        panel = panel.override_by_name(name, [models.DynamicConfigValue("unit", unit)])
    for index, (expression, _, _) in enumerate(columns):
        asked = prometheus.Dataquery().expr(expression).instant().format(PromQueryFormat.TABLE)
        panel = panel.with_target(asked.ref_id(_letter(index)).datasource(SOURCE))
    return panel.datasource(SOURCE).span(24).height(10)


def rate(name: str, chosen: str, by: str) -> str:
    """How fast a counter of those that are `chosen` grows now, for each value of the label `by`."""
    return f"sum by ({by}) (rate({name}{{{chosen}}}[{RECENT}]))"


def choice(name: str, label: str, values: str, *, every: bool = False) -> builders.QueryVariable:
    """A variable whose values Prometheus knows; `every` lets all of them be chosen."""
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .query({"query": values, "refId": name})
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    return variable.include_all(True).multi(True).all_value(".*") if every else variable


def sources() -> builders.DatasourceVariable:
    """Which Prometheus is asked."""
    return builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def dashboard(board: Board) -> models.Dashboard:
    """The whole of it, with numbered panels."""
    frame = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .editable()
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("RLJob")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
        )
    )
    for variable in board.variables:
        frame = frame.with_variable(variable)
    for mark in board.marks:
        query = builders.AnnotationQuery().name(mark.legend).expr(mark.expression).datasource(SOURCE)
        frame = frame.annotation(query.enable(True).icon_color("orange"))
    for row in board.rows:
        frame = frame.with_row(builders.Row(row.title))
        for panel in row.panels:
            frame = frame.with_panel(panel)
    built = frame.build()
    for number, panel in enumerate(built.panels or [], 1):
        panel.id_val = number
    return built


def _ask(panel: Panel, queries: Sequence[Query]) -> None:
    for index, query in enumerate(queries):
        asked = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).range()
        panel.with_target(asked.ref_id(_letter(index)).datasource(SOURCE))
    panel.datasource(SOURCE)


def _letter(index: int) -> str:
    """Grafana's name of the query at this place."""
    return chr(ord("A") + index)
