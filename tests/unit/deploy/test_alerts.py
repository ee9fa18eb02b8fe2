"""Every alert fires under its faults, and none in healthy runs: Prometheus's promtool says so of
the series in alerts.yml. Dashboards link to the section of each in the runbooks."""

import json
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
