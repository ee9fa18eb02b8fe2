"""Every alert fires under its fault, and none in a healthy run: Prometheus's promtool says so."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards import FILES, dashboard, panels

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"] if "alert" in rule}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; Debian has it in prometheus",
)

# Two hours of a healthy stack, a sample a minute: the job steps every 25 minutes, and a learner's
# process ends and begins with each of the short jobs before it.
JOB = 'job="a",recipe="r"'
HEALTHY: dict[str, str | None] = {
    'weir_jobs{state="running"}': "1x120",
    'weir_jobs{state="succeeded"}': "0+1x10 10x110",
    f'weir_job_state{{{JOB},state="running"}}': "1x120",
    'weir_job_state{job="old",recipe="r",state="running"}': "0x120",
    f"weir_job_progress_timestamp_seconds{{{JOB}}}": "0x24 1500x24 3000x24 4500x24 6000x24",
    'weir_job_progress_timestamp_seconds{job="old",recipe="r"}': "0x120",
    f"weir_job_step_seconds_median{{{JOB}}}": "1500x120",
    'weir_job_step_seconds_median{job="old",recipe="r"}': "1x120",
    f"weir_job_evaluation_seconds_max{{{JOB}}}": "0x120",
    'weir_job_evaluation_seconds_max{job="old",recipe="r"}': "0x120",
    f"weir_job_checkpoint_age_seconds{{{JOB}}}": "0+60x120",
    f"weir_job_checkpoint_every_steps{{{JOB}}}": "2x120",
    f'weir_job_metric{{{JOB},name="parity_max"}}': "0.001x120",
    'weir_job_metric{job="old",recipe="r",name="parity_max"}': "0.2x120",
    f'weir_job_metric{{{JOB},name="entropy"}}': "0.5x120",
    f'weir_job_metric{{{JOB},name="accuracy"}}': "0.4x120",
    f'weir_job_stalled{{{JOB},edge="grading"}}': "0x120",
    'weir_backlog_oldest_seconds{stream="requests"}': "3000x120",
    'weir_backlog_oldest_seconds{stream="rollouts"}': "60x120",
    'weir_deliveries_given_up_total{service="grader",why="deaths"}': "0x120",
    'weir_policy_version{instance="a"}': "0x24 1x24 2x24 3x24 4x24",
    'weir_policy_version{instance="b"}': "0x26 1x24 2x24 3x24 4x22",
    'weir_backpressure_seconds{service="rollout"}': "0x120",
    'weir_grades_total{verifier="v",verdict="correct",reason=""}': "0+100x120",
    'weir_grades_total{verifier="v",verdict="ungradable",reason="timeout"}': "0+1x120",
    'weir_ready{service="grader"}': "1x120",
    'weir_judge_calls_total{service="grader",outcome="verdict"}': "0+100x120",
    'weir_judge_calls_total{service="grader",outcome="failed"}': "0x120",
    **{f'up{{job="weir",service="{name}"}}': "1x120" for name in ("learner", "rollout", "grader")},
    'weir_service_starts_total{service="learner"}': "0+1x10 10x110",
    'weir_service_starts_total{service="rollout"}': "0 1x119",
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"}': "0.4x120",
    "weir_data_free_bytes": "50x120",
    "weir_data_size_bytes": "100x120",
    'weir_server_unsafe{setting="appendonly"}': "0x120",
}

# By alert: what is otherwise, and after how many minutes it fires.
FAULTS: dict[str, list[tuple[dict[str, str | None], int]]] = {
    "NoTrainingStep": [
        ({f"weir_job_progress_timestamp_seconds{{{JOB}}}": "0x120"}, 80),
        (
            {
                f"weir_job_progress_timestamp_seconds{{{JOB}}}": "0x120",
                f"weir_job_step_seconds_median{{{JOB}}}": None,
            },
            65,
        ),
    ],
    "JobStalled": [({f'weir_job_stalled{{{JOB},edge="grading"}}': "1x120"}, 2)],
    "JobWithoutLearner": [
        ({'up{job="weir",service="learner"}': None}, 2),
        ({'up{job="weir",service="learner"}': "1x20 0x100"}, 25),
    ],
    "JobWithoutRollout": [({'up{job="weir",service="rollout"}': "1x20 0x100"}, 25)],
    "JobWithoutGrader": [({'up{job="weir",service="grader"}': None}, 2)],
    "CheckpointOld": [({f"weir_job_checkpoint_age_seconds{{{JOB}}}": "9000+60x120"}, 15)],
    "EngineAndLearnerDisagree": [
        ({f'{metric}{{{JOB},name="parity_max"}}': "0.2x120"}, 1)
        for metric in ("weir_job_metric", "weir_job_evaluation")
    ],
    "EntropyCollapse": [({f'weir_job_metric{{{JOB},name="entropy"}}': "0.5x20 0.001x100"}, 35)],
    "OldestEntry": [
        ({'weir_backlog_oldest_seconds{stream="rollouts"}': "0+60x120"}, 20),
        ({'weir_backlog_oldest_seconds{stream="requests"}': "11000x120"}, 2),
    ],
    "GroupsGivenUp": [
        ({'weir_deliveries_given_up_total{service="grader",why="deaths"}': "_x30 32x90"}, 31),
        ({'weir_deliveries_given_up_total{service="grader",why="deaths"}': "0x30 1x90"}, 31),
    ],
    "RolloutBehind": [({'weir_policy_version{instance="b"}': "0x120"}, 60)],
    "MemoryFull": [({'weir_backpressure_seconds{service="rollout"}': "0+30x120"}, 10)],
    "UngradableScores": [
        ({'weir_grades_total{verifier="v",verdict="ungradable",reason="timeout"}': "0+9x120"}, 20),
        ({'weir_grades_total{verifier="v",verdict="ungradable",reason="x"}': "_x30 500x90"}, 32),
    ],
    "GraderWaits": [({'weir_ready{service="grader"}': "0x120"}, 3)],
    "JudgeErrors": [
        ({'weir_judge_calls_total{service="grader",outcome="failed"}': "0+20x120"}, 15)
    ],
    "ServiceDown": [({'up{job="weir",service="grader"}': "0x120"}, 2)],
    "CrashLoop": [
        ({'weir_service_starts_total{service="rollout"}': "1x20 1+1x100"}, 35),
        ({'weir_service_starts_total{service="learner"}': "1x20 1+1x100"}, 35),
        (
            {
                'weir_service_starts_total{service="rollout"}': "1x20 1+1x100",
                'up{job="weir",service="rollout"}': None,
            },
            35,
        ),
    ],
    "ServerNotSafe": [({'weir_server_unsafe{setting="appendonly"}': "1x120"}, 1)],
    "GpuIdle": [({'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"}': "0.4x20 0.01x100"}, 45)],
    "DataDiskFull": [({"weir_data_free_bytes": "50x20 4x100"}, 30)],
}


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def a_test(series: Mapping[str, str | None], alert: str, minute: int) -> dict[str, Any]:
    """Whether an alert fires in a minute; whether none does, if it is empty."""
    fires = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items() if values
        ],
        "promql_expr_test": [
            {
                "expr": fires if alert else 'ALERTS{alertstate="firing"}',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if alert else [],
            }
        ],
    }


def check(folder: Path, *tests: dict[str, Any]) -> None:
    shutil.copy(FOLDER / "rules.yml", folder)
    file = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(json.dumps(file))
    promtool("test", "rules", folder / "tests.yml")


@needs_promtool
def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "rules.yml")


def test_every_alert_has_a_fault_to_fire_under() -> None:
    assert set(ALERTS) == set(FAULTS)


@needs_promtool
def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    check(tmp_path, *(a_test(HEALTHY, "", minute) for minute in (5, 12, 30, 60, 90, 119)))


@needs_promtool
def test_every_alert_fires_under_its_faults(tmp_path: Path) -> None:
    faults = [(alert, *fault) for alert, faults in FAULTS.items() for fault in faults]
    check(tmp_path, *(a_test(HEALTHY | changes, alert, at) for alert, changes, at in faults))


def test_an_alert_says_how_bad_it_is_and_has_a_section_of_the_runbooks_and_a_panel() -> None:
    runbooks = (ROOT / "deploy/runbooks.md").read_text()
    boards = "".join(path.read_text() for path in FILES)
    for alert, rule in ALERTS.items():
        assert rule["labels"]["severity"] in {"warning", "critical"}, alert
        assert rule["annotations"]["summary"], alert
        assert rule["annotations"]["runbook_url"] == f"deploy/runbooks.md#{alert.lower()}"
        assert f"\n## {alert}\n" in runbooks, alert
        assert f'"title": "Runbook: {alert}"' in boards, alert


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_panel_says_what_it_shows_and_lies_beside_the_others(file: Path) -> None:
    content = dashboard(file)
    for panel in panels(content):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        legends = {target["legendFormat"] for target in panel["targets"]}
        assert panel["type"] == "table" or len(legends) == len(panel["targets"]), panel["title"]
    cells = [
        (panel["gridPos"]["x"] + right, panel["gridPos"]["y"] + down)
        for panel in content["panels"]
        for right in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(right for right, _ in cells) < 24
