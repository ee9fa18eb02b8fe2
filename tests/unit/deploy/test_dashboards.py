"""The dashboards are what the code says, and name metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from deploy.grafana.__main__ import generated, main
from services.learner.job.phases.summary import summarize
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.dashboards import FILES, dashboard, expressions, panels

ROOT = Path(__file__).parents[3]
METRICS = {
    name: (kind, set(re.findall(r"`(\w+)`", labels)))
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \|", (ROOT / "deploy/metrics.md").read_text(), re.MULTILINE
    )
}
OF_OTHERS = re.compile(r"up|ALERTS|process_\w+|redis_\w+|DCGM_\w+")  # what exporters call theirs
LABELS_OF_SCRAPES = {"service", "instance", "le"}
RISING_GAUGES = {"weir_backpressure_seconds"}
every_dashboard = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def selected(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it is selected by."""
    found = re.findall(
        r"\b(weir_\w+|up|ALERTS|process_\w+|redis_\w+|DCGM_\w+)\b(?:{([^}]*)})?", expression
    )
    return [(name, set(re.findall(r"(\w+)[=!]", labels))) for name, labels in found]


def test_the_files_are_what_the_code_generates() -> None:
    assert {path: path.read_text() for path in FILES} == generated()
    assert main(["--check"]) == 0


@pytest.mark.parametrize(("where", "expression"), [*expressions()])
def test_an_expression_names_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    found = selected(expression)
    assert found, where
    for name, labels in found:
        if OF_OTHERS.fullmatch(name):
            continue
        of_histogram = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, known = METRICS.get(name) or METRICS[of_histogram]
        assert (kind == "histogram") == (name not in METRICS), name
        assert labels <= known | LABELS_OF_SCRAPES, name
        is_rate = re.search(rf"(rate|increase)\({name}\b", expression) is not None
        assert not is_rate or kind != "gauge" or name in RISING_GAUGES, name


@every_dashboard
def test_every_panel_says_what_it_shows(file: Path) -> None:
    for panel in panels(dashboard(file)):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert panel["type"] == "table" or all(legends), panel["title"]
        assert len(set(legends)) == len(legends) or panel["type"] == "table", panel["title"]


@every_dashboard
def test_panels_lie_side_by_side_in_the_grid(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    content = dashboard(file)
    for panel in content["panels"]:
        at = panel["gridPos"]
        cells = {
            (at["x"] + right, at["y"] + down) for right in range(at["w"]) for down in range(at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in content["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_dashboards_have_names_of_their_own() -> None:
    contents = [dashboard(file) for file in FILES]
    for key in ("uid", "title"):
        assert len({content[key] for content in contents}) == len(contents)
    assert all(content["uid"].startswith("weir-") for content in contents)


def test_the_dashboards_show_numbers_that_an_evaluation_has() -> None:
    groups = [
        a_graded_group(a_group(a_request(number=number, task=a_task(id=str(number)))), [1.0, 0.0])
        for number in range(2)
    ]
    names = {*summarize(0, groups), "parity_max"}
    asked = [
        name
        for _, expression in expressions()
        for name in re.findall(r'weir_job_evaluation{[^}]*name=~?"([^"]+)"', expression)
    ]
    assert {"accuracy", "accuracy_low", "accuracy_high"} <= set(asked)
    assert all(any(re.fullmatch(pattern, name) for name in names) for pattern in asked)


def test_every_alert_is_linked_from_a_panel_to_its_runbook() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    alerts = {
        rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule
    }
    contents = {content["uid"]: content for content in map(dashboard, FILES)}
    linked = set()
    for content in contents.values():
        for panel in panels(content):
            for link in panel.get("links", ()):
                uid, number = re.fullmatch(r"/d/([\w-]+)\?viewPanel=(\d+)", link["url"]).groups()  # type: ignore[union-attr]
                (target,) = (p for p in contents[uid]["panels"] if p["id"] == int(number))
                assert link["title"] == f"Runbook: {target['title']}"
                assert target["options"]["content"]
                linked.add(target["title"])
    assert linked == alerts
