"""The panels of the dashboards, a function per kind, so that all of a kind look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.queries import Series
from deploy.grafana.runbooks import link_to

DATA_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
Panel = TypeVar("Panel", stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)
_FAINT = [
    models.DynamicConfigValue(id_val="custom.lineWidth", value=1),
    models.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [4, 4]}),
    models.DynamicConfigValue(
        id_val="custom.hideFrom", value={"legend": True, "tooltip": False, "viz": False}
    ),
]


@dataclass(frozen=True)
class Column:
    """A column of a table: an instant query that gives one number per row.

    Without a name it is not shown: it is there for its labels.
    """

    name: str
    expression: str
    unit: str
    gauge: bool = False  # drawn as a bar from 0 to 1


@dataclass(frozen=True)
class Limits:
    """From where on a number is a warning, and bad; ``below`` says that small ones are."""

    warn: float
    bad: float
    below: bool = False

    def thresholds(self) -> dashboard.ThresholdsConfig:
        """Colours by value: Grafana wants them in rising order, the first from -Infinity."""
        steps = [(None, "green"), (self.warn, "orange"), (self.bad, "red")]
        if self.below:
            steps = [(None, "red"), (self.bad, "orange"), (self.warn, "green")]
        return dashboard.ThresholdsConfig().steps(
            [models.Threshold(value=value, color=colour) for value, colour in steps]
        )


def graph(
    title: str,
    description: str,
    unit: str,
    *series: Series,
    width: int = 8,
    alerts: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    limits: Limits | None = None,
    stacked: bool = False,
    stairs: bool = False,
    faint: str = "",
) -> timeseries.Panel:
    """Lines over time.

    Args:
        alerts: those that watch this number; the panel links to their runbooks.
        limits: drawn as dashed lines.
        stairs: the number changes from time to time and holds until then.
        faint: a regular expression of legends; what has one is dashed and has no legend.
    """
    panel = _dressed(timeseries.Panel(), title, description, unit, series, (width, 8), alerts)
    panel = panel.legend(_legend()).tooltip(_tooltip()).line_width(2).span_nulls(True)
    panel = panel.show_points(common_models.VisibilityMode.NEVER)
    if minimum is not None:
        panel = panel.min(minimum)
    if maximum is not None:
        panel = panel.max(maximum)
    if limits:
        style = common.GraphThresholdsStyleConfig().mode(
            common_models.GraphThresholdsStyleMode.DASHED
        )
        panel = panel.thresholds(limits.thresholds()).thresholds_style(style)
    if stacked:
        mode = common_models.StackingMode.NORMAL
        panel = panel.fill_opacity(60).stacking(common.StackingConfig().mode(mode).group("A"))
    if stairs:
        panel = panel.line_interpolation(common_models.LineInterpolation.STEP_AFTER)
    return panel.override_by_regexp(f"/{faint}/", _FAINT) if faint else panel


def number(
    title: str,
    description: str,
    unit: str,
    *series: Series,
    width: int = 4,
    alerts: Sequence[str] = (),
    limits: Limits | None = None,
) -> stat.Panel:
    """The present value, large; several side by side."""
    panel = _dressed(stat.Panel(), title, description, unit, series, (width, 4), alerts, True)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.graph_mode(common_models.BigValueGraphMode.NONE)
    if limits is None:
        return panel.color_mode(common_models.BigValueColorMode.NONE)
    return panel.color_mode(common_models.BigValueColorMode.VALUE).thresholds(limits.thresholds())


def rows(
    title: str, description: str, key: Sequence[str], *columns: Column, width: int = 24
) -> table.Panel:
    """A table with a row per value of the labels ``key``, by which its columns are joined."""
    queries = [(column.expression, "") for column in columns]
    panel = _dressed(table.Panel(), title, description, "short", queries, (width, 8), (), True)
    names = {f"Value #{chr(ord('A') + n)}": column.name for n, column in enumerate(columns)}
    hidden = {"Time": True} | {value: True for value, name in names.items() if not name}
    order = {name: place for place, name in enumerate([*key, *names])}
    panel = panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": hidden, "indexByName": order, "renameByName": names},
        )
    )
    for column in filter(lambda column: column.name, columns):
        properties = [models.DynamicConfigValue(id_val="unit", value=column.unit)]
        if column.gauge:
            properties += [
                models.DynamicConfigValue(id_val="min", value=0),
                models.DynamicConfigValue(id_val="max", value=1),
                models.DynamicConfigValue(
                    id_val="custom.cellOptions", value={"type": "gauge", "mode": "basic"}
                ),
            ]
        panel = panel.override_by_name(column.name, properties)
    return panel


def states(
    title: str,
    description: str,
    *series: Series,
    names: Mapping[int, tuple[str, str]],
    width: int = 24,
    alerts: Sequence[str] = (),
) -> statetimeline.Panel:
    """What something was over time; ``names`` has the word and the colour of each value."""
    panel = _dressed(statetimeline.Panel(), title, description, "none", series, (width, 6), alerts)
    words = {
        str(value): models.ValueMappingResult(text=word, color=colour, index=place)
        for place, (value, (word, colour)) in enumerate(names.items())
    }
    panel = panel.mappings([models.ValueMap(options=words)]).merge_values(True).fill_opacity(80)
    return panel.legend(_legend().calcs([])).show_value(common_models.VisibilityMode.AUTO)


def prose(title: str, markdown: str, width: int = 24, height: int = 8) -> text.Panel:
    """A text."""
    return text.Panel().title(title).content(markdown).span(width).height(height)


def _dressed(
    panel: Panel,
    title: str,
    description: str,
    unit: str,
    series: Sequence[Series],
    size: tuple[int, int],
    alerts: Sequence[str],
    instant: bool = False,
) -> Panel:
    """A panel with what every kind has: its words, its queries, its place and its runbook."""
    panel = panel.title(title).description(description).unit(unit).datasource(DATA_SOURCE)
    panel = panel.span(size[0]).height(size[1])
    for position, (expression, legend) in enumerate(series):
        query = prometheus.Dataquery().expr(expression).ref_id(chr(ord("A") + position))
        query = query.datasource(DATA_SOURCE).legend_format(legend)
        query = query.instant() if instant else query.range()
        if isinstance(panel, table.Panel):
            query = query.format(PromQueryFormat.TABLE)
        panel = panel.with_target(query)
    links = [dashboard.DashboardLink(f"Runbook: {alert}").url(link_to(alert)) for alert in alerts]
    return panel.links([link.type(models.DashboardLinkType.LINK) for link in links])


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    return legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True)


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
