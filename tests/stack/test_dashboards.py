"""A real Prometheus watches a job from its start to its end: every panel has something to show."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from protocol.recipe import load_recipe

from tests.dashboards import FILES, Json, Prometheus, Query, dashboard, marks, panels, queries
from tests.stack.conftest import ROOT, Stack, wait_for

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="apt-get install prometheus"),
]
SILENT = {  # what has nothing to say here, and why
    "DCGM_": "there is no GPU",
    'name="mfu"': "of a CPU no peak is known",
    "redis_": "its exporter runs in containers only",
    "weir_judge_": "there is no judge",
    'name="value_loss"': "the recipe has no critic",
    'name="divergence"': "the recipe has no reference",
    "ALERTS{": "nothing is wrong",
    'weir_job_stalled{job=~"$job"} == 1': "nothing stands still",
}
MAY_BE_EMPTY = ("DCGM_", "redis_", "weir_judge_", 'name="mfu"')  # whole panels


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
    folder, since = tmp_path_factory.mktemp("prometheus"), time.time()
    prometheus = Prometheus.start(folder, stack.metrics())
    recipe = load_recipe(ROOT / "recipes/demo.toml")
    changed = {
        # Several scrapes between the first evaluation and the last.
        "training": {"steps": 9, "groups_per_step": 4, "checkpoint_every": 3},
        "evaluation": {"tasks": 8, "every": 3},
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
