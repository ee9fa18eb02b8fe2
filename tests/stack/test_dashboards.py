"""A real Prometheus watches a job from its start to its end: every panel has something to show."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from protocol.recipe import load_recipe

from deploy.processes import free_ports
from tests.stack.conftest import ROOT, Stack, wait_for

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="apt-get install prometheus"),
]
FILES = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
Json = dict[str, Any]
INTERVAL_S = 2  # between two scrapes
WINDOW_S = 20  # for rates and changes: a busy machine misses scrapes
SILENT = {  # what has nothing to say here, and why
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
}
MAY_BE_EMPTY = ("DCGM_", "redis_", "weir_judge_", "weir_episode", 'name="mfu"')  # whole panels


@dataclass(frozen=True)
class Query:
    """One expression of a panel or of an annotation."""

    expression: str
    is_instant: bool = False

    def filled(self, seconds: int) -> str:
        """The expression as Grafana would ask it: all jobs and services, over so many seconds."""
        values = {"__range": f"{seconds}s", "__rate_interval": f"{WINDOW_S}s"}
        values |= {"job": ".*", "service": ".*"}
        return re.sub(r"\$(\w+)", lambda match: values[match[1]], self.expression)


def dashboard(file: Path) -> Json:
    return json.loads(file.read_text(encoding="utf-8"))


def panels(content: Json) -> list[Json]:
    """The panels that show data."""
    return [panel for panel in content["panels"] if panel["type"] not in {"row", "text"}]


def queries(panel: Json) -> list[Query]:
    return [Query(target["expr"], target.get("instant", False)) for target in panel["targets"]]


def marks(content: Json) -> list[tuple[str, Query]]:
    return [(each["name"], Query(each["expr"])) for each in content["annotations"]["list"]]


@dataclass
class Prometheus:
    """A process of Prometheus, with the deployment's configuration but other targets."""

    url: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, targets: Mapping[str, str]) -> Prometheus:
        """Begin to scrape.

        Args:
            targets: the service by the address of each of its processes, as HOST:PORT.
        """
        written = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        (of_weir,) = (each for each in written["scrape_configs"] if each["job_name"] == "weir")
        for key in ("dns_sd_configs", "relabel_configs"):
            del of_weir[key]
        of_weir["static_configs"] = [
            {"targets": [address], "labels": {"service": service}}
            for address, service in targets.items()
        ]
        written["scrape_configs"] = [of_weir]
        every = f"{INTERVAL_S}s"
        written["global"] |= {"scrape_interval": every, "scrape_timeout": every}
        written["rule_files"] = [str(ROOT / "deploy/prometheus/rules.yml")]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(written))
        port = next(free_ports())
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        process = subprocess.Popen(command, stdout=sys.stderr)
        running = cls(f"http://127.0.0.1:{port}", process)
        deadline = time.monotonic() + 60
        while not running._is_ready():
            assert process.poll() is None, "prometheus has ended"
            assert time.monotonic() < deadline, "prometheus does not answer"
            time.sleep(0.1)
        return running

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def now(self, expression: str, at: float) -> list[Json]:
        """The series that an expression has at a moment; each with its ``value``."""
        return self._get("query", query=expression, time=at)

    def answer(self, query: Query, since: float, until: float) -> list[Json]:
        """What Grafana would draw of a query; each series has its ``values``."""
        seconds = int(until - since)
        expression = query.filled(seconds)
        if query.is_instant:
            found = self.now(expression, until)
            return [{**series, "values": [series["value"]]} for series in found]
        times = {"start": since, "end": until, "step": max(1, seconds // 300)}
        return self._get("query_range", query=expression, **times)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def _get(self, path: str, **parameters: str | float) -> list[Json]:
        response = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        assert response.is_success, f"{parameters['query']}: {response.text}"
        return response.json()["data"]["result"]


@dataclass(frozen=True)
class Watched:
    """A job that has ended, and the Prometheus that has seen it."""

    prometheus: Prometheus
    job: Json
    since: float
    until: float

    def has_data(self, query: Query) -> bool:
        found = self.prometheus.answer(query, self.since, self.until)
        return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


@pytest.fixture(scope="module")
def watched(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    since = time.time()
    prometheus = Prometheus.start(folder, stack.metrics())
    recipe = load_recipe(ROOT / "recipes/demo.toml")
    changed = {
        # Several scrapes between the first evaluation and the last.
        "training": {"steps": 18, "groups_per_step": 4, "checkpoint_every": 6},
        "evaluation": {"tasks": 8, "every": 6},
    }
    tables = {name: getattr(recipe, name).model_copy(update=new) for name, new in changed.items()}
    try:
        with stack.client() as weir:
            model = str(ROOT / recipe.model.path)
            submitted = weir.submit_recipe(recipe.model_copy(update=tables), model=model)
        job = stack.wait_for_end(submitted["id"], timeout_s=600)
        assert job["status"] == "succeeded", job["error"]
        ended = f'weir_job_state{{job="{job["id"]}",state="succeeded"}} == 1'
        wait_for(lambda: bool(prometheus.now(ended, time.time())), 300, "Prometheus to see the end")
        yield Watched(prometheus, job, since, time.time())
    finally:
        prometheus.stop()


def is_excused(query: Query) -> bool:
    return any(word in query.expression for word in SILENT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_and_annotation_has_data_or_an_excuse(watched: Watched, file: Path) -> None:
    content = dashboard(file)
    for panel in panels(content):
        asked = queries(panel)
        answered = [query for query in asked if watched.has_data(query)]
        unexpected = [q.expression for q in asked if q not in answered and not is_excused(q)]
        assert not unexpected, panel["title"]
        may_be_empty = all(any(word in q.expression for word in MAY_BE_EMPTY) for q in asked)
        assert answered or may_be_empty, panel["title"]
    for name, query in marks(content):
        assert watched.has_data(query) or is_excused(query), name


def test_prometheus_has_the_last_evaluation_and_marks_what_happened(watched: Watched) -> None:
    selector = f'weir_job_evaluation{{job="{watched.job["id"]}"}}'
    found = watched.prometheus.now(selector, watched.until)
    seen = {series["metric"]["name"]: float(series["value"][1]) for series in found}
    told = watched.job["weir"]["result"]["evaluations"][-1]
    for name in ("step", "accuracy", "accuracy_low", "accuracy_high", "response_length"):
        assert seen[name] == pytest.approx(told[name]), name
    for name in ("Checkpoint", "Evaluation"):
        query = dict(marks(dashboard(FILES[0])))[name]
        drawn = watched.prometheus.answer(query, watched.since, watched.until)
        of_job = [series for series in drawn if series["metric"]["job"] == watched.job["id"]]
        assert max(float(value) for series in of_job for _, value in series["values"]) > 0, name


def test_no_alert_fires_while_all_is_well(watched: Watched) -> None:
    firing = Query('ALERTS{alertstate="firing"}')
    found = watched.prometheus.answer(firing, watched.since, watched.until)
    assert [series["metric"]["alertname"] for series in found] == []
