"""Every alert fires under its faults, and none in healthy runs: Prometheus's promtool says so of
the series in alerts.yml. Dashboards link to the section of each in the runbooks."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"] if "alert" in rule}
BOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
SERIES = yaml.safe_load(Path(__file__).with_name("alerts.yml").read_text())


HOME = {
    panel["title"]: panel
    for panel in json.loads((ROOT / "deploy/grafana/dashboards/jobs.json").read_text())["panels"]
}


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def a_test(changes: Mapping[str, Any], alert: str, *minutes: int) -> dict[str, Any]:
    """Whether an alert fires in these minutes; whether none does, if it is empty."""
    series = SERIES["healthy"] | {
        name: value for name, value in changes.items() if name != "minute"
    }
    fires = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
    expectations = [
        {
            "expr": fires if alert else 'ALERTS{alertstate="firing"}',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": 1}] if alert else [],
        }
        for minute in minutes
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items() if values]
    return {"interval": "1m", "input_series": inputs, "promql_expr_test": expectations}


@pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")
def test_every_alert_fires_under_its_faults_and_none_in_healthy_runs(tmp_path: Path) -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "rules.yml")
    assert set(SERIES["faults"]) == set(ALERTS)
    tests = [a_test(run, "", 5, 12, 30, 60, 90, 119) for run in ({}, *SERIES["harmless"])]
    for alert, faults in SERIES["faults"].items():
        tests += [a_test(fault, alert, fault["minute"]) for fault in faults]
    shutil.copy(FOLDER / "rules.yml", tmp_path)
    file = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(file))
    promtool("test", "rules", tmp_path / "tests.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_has_a_section_and_a_panel(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"deploy/runbooks.md#{alert.lower()}"
    assert f"\n## {alert}\n" in (ROOT / "deploy/runbooks.md").read_text()
    assert any(f'"title": "Runbook: {alert}"' in path.read_text() for path in BOARDS)


def read_mapping(panel: Mapping[str, Any], column: str) -> dict[str, str]:
    (properties,) = (
        {setting["id"]: setting["value"] for setting in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == column
    )
    (mapping,) = properties["mappings"]
    return {value: option["text"] for value, option in mapping["options"].items()}


def test_the_home_dashboard_has_each_alerts_summary_and_the_panel_of_its_runbook() -> None:
    def describe(rule: Mapping[str, Any]) -> str:
        summary = rule["annotations"]["summary"]
        summary = summary.replace("{{ $labels.recipe }} ({{ $labels.job }})", "the job")
        return re.sub(r"{{.*?}}", "…", summary)  # other columns have the labels

    table = HOME["Alerts that fire"]
    books = json.loads((ROOT / "deploy/grafana/dashboards/runbooks.json").read_text())["panels"]
    assert read_mapping(table, "Summary") == {a: describe(rule) for a, rule in ALERTS.items()}
    assert read_mapping(table, "runbook") == {book["title"]: str(book["id"]) for book in books}


JOBS = {  # state, request, and the code that the timeline shows
    "queued": ("queued", "run", 1),
    "runs": ("running", "run", 2),
    "pausing": ("running", "pause", 7),
    "paused": ("paused", "pause", 3),
    "stops": ("running", "cancel", 8),
    "held-up": ("paused", "cancel", 8),
    "ended": ("cancelled", "cancel", 6),
}
STATES = ("queued", "running", "paused", "succeeded", "failed", "cancelled")


@pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")
def test_the_home_dashboard_tells_what_is_pending_and_the_time_left(tmp_path: Path) -> None:
    series: dict[str, float] = {}
    for job, (state, request, _) in JOBS.items():
        labels = f'job="{job}",recipe="r"'
        for label in STATES:
            series[f'weir_job_state{{{labels},state="{label}"}}'] = label == state
        for label in ("run", "pause", "cancel"):
            series[f'weir_job_requested{{{labels},request="{label}"}}'] = label == request
        series[f"weir_job_steps{{{labels}}}"] = 10
        series[f"weir_job_step{{{labels}}}"] = 4
        series[f"weir_job_step_seconds_median{{{labels}}}"] = 20
    series['ALERTS{alertname="JobStalled",alertstate="firing",edge="judge",job="runs"}'] = 1
    running = [job for job, (state, *_) in JOBS.items() if state == "running"]
    alert = 'alertname="JobStalled",summary="JobStalled",runbook="JobStalled"'
    expected = [
        (
            HOME["State"]["targets"][0],
            {f'{{job="{job}",recipe="r"}}': code for job, (*_, code) in JOBS.items()},
        ),
        (HOME["All jobs"]["targets"][-1], {f'{{job="{job}"}}': 120 for job in running}),
        (HOME["Alerts that fire"]["targets"][0], {f'{{{alert},edge="judge",job="runs"}}': 1}),
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": f"{value:d}"} for key, value in series.items()],
        "promql_expr_test": [
            {
                "expr": target["expr"].replace("$job", ".*"),
                "eval_time": "0m",
                "exp_samples": [{"labels": key, "value": n} for key, n in samples.items()],
            }
            for target, samples in expected
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps({"tests": [test]}))
    promtool("test", "rules", tmp_path / "tests.yml")
