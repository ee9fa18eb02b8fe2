"""Jobs on a real stack of their own, for benchmarks that take their numbers from the events."""

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
WARM_UP = 5  # the first steps, which are left out


@dataclass(frozen=True)
class Job:
    """What a job's events told."""

    steps: Sequence[Json]
    evaluations: Sequence[Json]

    @property
    def measured(self) -> Sequence[Json]:
        """The steps after those that warm it up."""
        return self.steps[WARM_UP:]

    @property
    def seconds(self) -> float:
        """That the measured steps took, with all that was between them but evaluations."""
        first, last = (self.steps[n]["totals"]["train_seconds"] for n in (WARM_UP - 1, -1))
        return last - first

    def total(self, name: str) -> float:
        """The sum of a metric over the measured steps."""
        return sum(step[name] for step in self.measured)

    def phase(self, name: str) -> float:
        """Seconds that the learner spent in a phase during the measured steps."""
        return sum(step["phase_seconds"].get(name, 0.0) for step in self.measured)


@contextmanager
def a_stack(**environment: str) -> Iterator[Stack]:
    """A stack of this machine's processes, for as long as the body runs."""
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
    """The demo's recipe for GRPO with other values in some tables, or without a table."""
    recipe = load_recipe(DEMO).model_dump(mode="json", exclude_none=True)
    for name, values in tables.items():
        if values is None:
            del recipe[name]
        else:
            recipe[name] = {**recipe.get(name, {}), **values}
    return parse_recipe(recipe)


def warm_up(stack: Stack) -> None:
    """A few steps of the demo: an engine's first batches are slow, and other jobs find it ready."""
    training = {"steps": WARM_UP, "checkpoint_every": WARM_UP}
    run(stack, a_demo_recipe(training=training, evaluation=None))


def run(stack: Stack, recipe: Recipe, after_step: Callable[[int], object] = int) -> Job:
    """Let the stack do a job, whose files lie below this project.

    Args:
        stack: that has nothing else to do.
        recipe: the job.
        after_step: is called with the number of steps that have been made.
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
