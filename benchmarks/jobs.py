"""Jobs on a real stack, for benchmarks that take their numbers from the events."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.recipe import Recipe, load_recipe, parse_recipe

from tests.stack.conftest import ROOT, Json, Stack, start

DEMO = ROOT / "recipes/demo-grpo.toml"
WARM_UP = 5  # steps that are not measured


@dataclass(frozen=True)
class Job:
    """The events of a job."""

    steps: Sequence[Json]
    evaluations: Sequence[Json]
    warm_up: int = WARM_UP
    end: int | None = None  # the last measured step, None for the last of all

    @property
    def measured(self) -> Sequence[Json]:
        """The steps after the warm-up."""
        return self.steps[self.warm_up : self.end]

    @property
    def seconds(self) -> float:
        """The time of the measured steps and of everything between them but evaluations."""
        before = self.steps[self.warm_up - 1]["totals"]["train_seconds"]
        return self.measured[-1]["totals"]["train_seconds"] - before

    def total(self, name: str) -> float:
        """Return the sum of a metric over the measured steps."""
        return sum(step[name] for step in self.measured)

    def phase(self, name: str) -> float:
        """Return the learner's seconds in a phase of the measured steps."""
        return sum(step["phase_seconds"].get(name, 0.0) for step in self.measured)


@contextmanager
def a_stack(**environment: str) -> Iterator[Stack]:
    """Run a stack of processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        timing = {"WEIR_HEARTBEAT_S": "1", "WEIR_CLAIM_IDLE_S": "15"}
        stack = start(Path(folder) / "stack", **{**timing, **environment})
        try:
            stack.wait_until_up(300)
            yield stack
        finally:
            stack.supervisor.terminate()
            stack.supervisor.wait(60)


def a_demo_recipe(**tables: Mapping[str, Any] | None) -> Recipe:
    """Return the demo's GRPO recipe with other settings in some tables, or without a table."""
    recipe = load_recipe(DEMO).model_dump(mode="json", exclude_none=True)
    for name, values in tables.items():
        if values is None:
            del recipe[name]
        else:
            recipe[name] = {**recipe.get(name, {}), **values}
    return parse_recipe(recipe)


def warm_up(stack: Stack) -> None:
    """Run a few steps of the demo, since an engine's first batches are slow."""
    training = {"steps": WARM_UP, "checkpoint_every": WARM_UP}
    run(stack, a_demo_recipe(training=training, evaluation=None))


def run(stack: Stack, recipe: Recipe, after_step: Callable[[int], object] = int) -> Job:
    """Run a job with files below this project on an idle stack.

    ``after_step`` is called with the number of finished steps.
    """
    steps: list[Json] = []
    evaluations: list[Json] = []
    with stack.client() as weir:
        job_id = weir.submit_recipe(recipe, model=str(ROOT / recipe.model.path))["id"]
        for event in weir.events(job_id):
            if "evaluation" in event["data"]:
                evaluations.append(event["data"])
            elif "reward" in event["data"]:
                steps.append(event["data"])
                after_step(len(steps))
        ended = weir.job(job_id)
    assert ended["status"] == "succeeded", ended["error"]
    return Job(steps, evaluations)
