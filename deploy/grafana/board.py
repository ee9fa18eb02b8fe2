"""How panels become a dashboard: its variables, its annotations, and links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.panels import DATA_SOURCE

Row = tuple[str, Sequence[Builder[models.Panel]]]  # its title, and its panels
_TAG = "weir"
_OF_VARIABLE = {
    "job": ("Job", "label_values(weir_job_step, job)"),
    "service": ("Service", 'label_values(up{job="weir"}, service)'),
}


class _Annotation(models.AnnotationQuery):
    """Marks where a Prometheus query is above 0; the library lacks the fields for that."""

    def __init__(
        self, name: str, colour: str, expression: str, text: str, *, shown: bool = True
    ) -> None:
        super().__init__(name, DATA_SOURCE, shown, icon_color=colour, expr=expression)
        self.text = text

    def to_json(self) -> dict[str, Any]:
        query = {"refId": "Anno", "datasource": DATA_SOURCE, "expr": self.expr, "range": True}
        own = {"target": query, "titleFormat": self.name, "textFormat": self.text}
        return {**super().to_json(), **own}


def board(
    uid: str,
    title: str,
    description: str,
    *rows: Row,
    variables: Sequence[str] = ("job",),
) -> models.Dashboard:
    """A dashboard of rows of panels, each panel with the number that its place gives it."""
    building = dashboard.Dashboard(title).uid(uid).description(description).tags([_TAG])
    building = building.timezone("browser").time("now-6h", "now").refresh("10s")
    building = building.tooltip(models.DashboardCursorSync.CROSSHAIR).link(_to_the_others())
    building = building.with_variable(_data_source())
    for name in variables:
        building = building.with_variable(_choice(name, *_OF_VARIABLE[name]))
    for heading, panels in rows:
        if heading:
            building = building.with_row(dashboard.Row(heading))
        for panel in panels:
            building = building.with_panel(panel)
    built = building.build()
    for number, panel in enumerate(built.panels or (), start=1):
        panel.id_val = number
    built.annotations = models.AnnotationContainer(list_val=[*_annotations()])
    return built


def _data_source() -> dashboard.DatasourceVariable:
    chosen = models.VariableOption(text="Prometheus", value="prometheus")
    return (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(chosen)
    )


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Any number of a label's values; all of them, unless a person chooses."""
    asked = {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    variable = dashboard.QueryVariable(name).label(label).query(asked).datasource(DATA_SOURCE)
    variable = variable.multi(True).include_all(True).all_value(".*")
    variable = variable.current(models.VariableOption(text=["All"], value=["$__all"]))
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _to_the_others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Weir").type(models.DashboardLinkType.DASHBOARDS).tags([_TAG])
    return link.keep_time(True).include_vars(True)


def _annotations() -> list[models.AnnotationQuery]:
    """What happened to the chosen jobs. Versions are many, and hidden until a person wants them."""
    return [
        _Annotation(
            "Checkpoint",
            "green",
            'changes(weir_job_checkpoint_step{job=~"$job"}[$__rate_interval])',
            "{{recipe}} {{job}}",
        ),
        _Annotation(
            "Evaluation",
            "blue",
            'changes(weir_job_evaluation{job=~"$job",name="step"}[$__rate_interval])',
            "{{recipe}} {{job}}",
        ),
        _Annotation(
            "Restart",
            "orange",
            "increase(weir_service_starts_total[$__rate_interval])",
            "{{service}}",
        ),
        _Annotation(
            "Alert", "red", 'max by (alertname) (ALERTS{alertstate="firing"})', "{{alertname}}"
        ),
        _Annotation(
            "New weights",
            "purple",
            "changes(weir_policy_version[$__rate_interval])",
            "{{instance}}",
            shown=False,
        ),
    ]
