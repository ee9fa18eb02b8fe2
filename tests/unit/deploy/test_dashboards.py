"""Dashboards show metrics that exist, with labels that are set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services.learner.evaluation import summarize
from tests.builders import a_graded_group, a_group, a_request, a_task

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
SOURCE = "\n".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))


def expressions(dashboard: Path) -> list[str]:
    panels: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_names_metrics_that_exist(dashboard: Path) -> None:
    defined = {name.removesuffix("_total") for name in re.findall(r'"(weir_[a-z_]+)"', SOURCE)}
    for expression in expressions(dashboard):
        named = re.findall(r"\bweir_[a-z_]+", expression)
        assert named, expression
        assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in named} <= defined


def test_the_evaluation_dashboard_shows_numbers_that_an_evaluation_has() -> None:
    groups = [
        a_graded_group(a_group(a_request(number=number, task=a_task(id=str(number)))), [1.0, 0.0])
        for number in range(2)
    ]
    names = summarize(0, groups)
    matched: set[str] = set()
    for expression in expressions(ROOT / "deploy" / "grafana" / "evaluation.json"):
        (selector,) = re.findall(r'^weir_job_evaluation\{name=~?"([^"]+)"\}$', expression)
        found = {name for name in names if re.fullmatch(selector, name)}
        assert found, expression
        matched |= found
    assert {"accuracy", "accuracy_low", "accuracy_high", "pass@1", "pass@2"} <= matched
