"""A real Prometheus watches a job from its start to its end: every panel has something to show."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.processes import free_ports
from tests.stack.conftest import ROOT, TASKS, Json, Stack, wait_for

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="apt-get install prometheus"),
]
FILES = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
INTERVAL = "2s"  # between two scrapes
STEPS = 18
VARIABLES = {
    "__rate_interval": "20s",  # a busy machine misses scrapes
    "job": ".*",
    "service": ".*",
}
SILENT = {  # words of the expressions that have nothing to say here, and why
    "DCGM_": "there is no GPU",
    'name="mfu"': "of a CPU no peak is known",
    "redis_": "its exporter runs in containers only",
    "weir_judge_": "there is no judge",
    'name="value_loss"': "the recipe has no critic",
    'name="process_wrong"': "the recipe scores the process of correct responses alone",
    'name="divergence"': "the recipe has no reference",
    "weir_episode": "the recipe has no environment",
    "ALERTS{": "nothing is wrong",
    'weir_job_stalled{job=~"$job"} == 1': "nothing stands still",
    "weir_job_queue_place": "no job waits",
    "- weir_job_step{": "the job has made its steps",
}
# Whole panels:
MAY_BE_EMPTY = ("DCGM_", "redis_", "weir_judge_", "weir_episode", 'name="mfu"', "ALERTS{")


@dataclass
class Prometheus:
    """One that has watched a job from its start to its end."""

    url: str
    job: Json
    since: float
    until: float = 0.0

    def ask(self, path: str, **parameters: str | float) -> list[Json]:
        response = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        assert response.is_success, f"{parameters['query']}: {response.text}"
        return response.json()["data"]["result"]

    def answer(self, query: Json) -> list[Json]:
        """The series that Grafana would draw of a query, each with its ``values``."""
        seconds = int(self.until - self.since)
        variables = VARIABLES | {"__range": f"{seconds}s"}
        expression = re.sub(r"\$([a-z_]\w*)", lambda match: variables[match[1]], query["expr"])
        if query.get("instant"):
            series = self.ask("query", query=expression, time=self.until)
            return [{**each, "values": [each["value"]]} for each in series]
        times = {
            "start": self.since,
            "end": self.until,
            "step": max(1, seconds // 300),
        }
        return self.ask("query_range", query=expression, **times)

    def numbers(self, query: Json, **labels: str) -> list[float]:
        """All that is drawn of the series with these labels."""
        return [
            float(value)
            for series in self.answer(query)
            if labels.items() <= series["metric"].items()
            for _, value in series["values"]
        ]

    def is_answered(self, query: Json) -> bool:
        return any(map(math.isfinite, self.numbers(query)))


@contextmanager
def watching(folder: Path, stack: Stack) -> Iterator[str]:
    """The address of a Prometheus with the stack's configuration, which looks more often."""
    settings = yaml.safe_load((stack.home / "prometheus.yml").read_text())
    settings["global"] |= {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    url = f"http://127.0.0.1:{next(free_ports())}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    ]
    process = subprocess.Popen(command, stdout=sys.stderr)

    def is_ready() -> bool:
        assert process.poll() is None, "prometheus has ended"
        with suppress(httpx.HTTPError):
            return httpx.get(f"{url}/-/ready", timeout=5).is_success
        return False

    try:
        wait_for(is_ready, 60, "prometheus")
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    since = time.time()
    with watching(tmp_path_factory.mktemp("prometheus"), stack) as url:
        job_id = stack.submit(
            held_out=TASKS.with_name("held_out.jsonl"),
            # Several scrapes between the first evaluation and the last.
            training={"steps": STEPS, "checkpoint_every": 6},
            evaluation={"tasks": 8, "every": 6},
        )
        job = stack.wait_for_end(job_id, timeout_s=600)
        assert job["status"] == "succeeded", job["error"]
        prometheus = Prometheus(url, job, since)
        # The gateway looks for checkpoints less often than it reads a job's state.
        ended = f'weir_job_state{{job="{job_id}",state="succeeded"}} == 1'
        saved = f'weir_job_checkpoint_step{{job="{job_id}"}} offset {INTERVAL} == {STEPS}'
        for query in (ended, saved):
            wait_for(partial(prometheus.ask, "query", query=query), 300, query)
        prometheus.until = time.time()
        yield prometheus


def has_word(query: Json, words: Any) -> bool:
    return any(word in query["expr"] for word in words)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_and_annotation_has_data_or_an_excuse(
    prometheus: Prometheus, file: Path
) -> None:
    board = json.loads(file.read_text())
    for panel in board["panels"]:
        if panel["type"] in {"row", "text"}:
            continue
        queries = panel["targets"]
        silent = [query for query in queries if not prometheus.is_answered(query)]
        assert all(has_word(query, SILENT) for query in silent), panel["title"]
        if silent == queries:
            assert all(has_word(query, MAY_BE_EMPTY) for query in queries), panel["title"]
    for mark in board["annotations"]["list"]:
        assert prometheus.is_answered(mark) or has_word(mark, SILENT), mark["name"]


def test_prometheus_has_the_last_evaluation_and_marks_what_happened(
    prometheus: Prometheus,
) -> None:
    job_id = prometheus.job["id"]
    evaluation = prometheus.job["weir"]["result"]["evaluations"][-1]
    query = {"expr": "weir_job_evaluation", "instant": True}
    for name in ("step", "accuracy", "accuracy_low", "accuracy_high", "response_length"):
        (number,) = prometheus.numbers(query, job=job_id, name=name)
        assert number == pytest.approx(evaluation[name]), name
    marks = json.loads(FILES[0].read_text())["annotations"]["list"]
    for mark in marks:
        if mark["name"] in {"Checkpoint", "Evaluation"}:
            assert max(prometheus.numbers(mark, job=job_id)) > 0, mark["name"]


def test_no_alert_fires_while_all_is_well(prometheus: Prometheus) -> None:
    series = prometheus.answer({"expr": 'ALERTS{alertstate="firing"}'})
    assert [each["metric"]["alertname"] for each in series] == []
