"""Faults of machines, networks, disks and clocks do not change the weights that a job learns.

A run has a hundred faults, or a thousand with `make test-long`. There ``SEEDS=40`` runs 40 jobs
with random seeds, ``SEED=7`` repeats one, and ``KINDS="kill learner,unmount"`` selects kinds.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.faults import KINDS, Fault, draw, strike
from tests.chaos.job import a_chaos_recipe
from tests.chaos.judgement import Outcome, differences, read_outcome
from tests.chaos.stack import Stack, prepare_forks, stack_with_job

pytestmark = [pytest.mark.redis, pytest.mark.stack]

FEW, MANY = 50, 250  # faults of a job
AT_ONCE = 4  # jobs
_STALL_S = 300.0  # a job that makes no step for so long stalls


@dataclass
class Run:
    """One job from its submission to its end; every other seed has a critic."""

    folder: Path
    steps: int
    with_critic: bool
    faults: Sequence[Fault] = ()
    journal: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    stalled: str = ""
    kills: Counter[str] = field(default_factory=Counter)  # of the learner, by what was under way

    async def go(self) -> None:
        """Disturb the job, let it end, and look at what it has come to."""
        recipe = a_chaos_recipe(steps=self.steps, with_critic=self.with_critic)
        async with stack_with_job(self.folder, recipe) as stack:
            ending = asyncio.create_task(_wait_until_ended(stack))
            try:
                if self.faults:
                    stack.switches.throw("pace")
                stack.start()
                await strike(stack, self.faults, ending, self.journal)
                stack.switches.release("pace")
                await ending
                self.outcome = await read_outcome(stack)
            except TimeoutError:
                self.stalled = f"the job stalls: {await stack.situation()}"
            finally:
                ending.cancel()
                self.kills = stack.kills

    @property
    def done(self) -> int:
        """How many faults have begun before the job ended."""
        return sum(" begins " in line for line in self.journal)

    def report(self, undisturbed: Outcome) -> str:
        """What is wrong with the run: nothing, if it came to what an undisturbed one came to."""
        verdict = differences(self.outcome, undisturbed) if self.outcome else [self.stalled]
        if verdict:
            return "\n".join([f"{self.folder}, where logs are:", *self.journal, *verdict])
        shutil.rmtree(self.folder)
        return ""


async def _wait_until_ended(stack: Stack) -> None:
    """Wait for the job's end.

    Raises:
        TimeoutError: if it makes no step for a long time.
    """
    step = -1
    while True:
        async with asyncio.timeout(_STALL_S):
            while (record := await stack.record()).step <= step:
                if record.state.is_final:
                    return
                await asyncio.sleep(0.05)
        step = record.step


async def _go(runs: Sequence[Run]) -> None:
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run.go())


def disturbed(folder: Path, seeds: Sequence[int], count: int) -> list[Run]:
    """Runs with so many faults each, all of which came to what they should."""
    steps = 40 + count
    kinds = os.environ.get("KINDS", ",".join(KINDS)).split(",")
    runs = [
        Run(folder / f"seed-{seed}", steps, bool(seed % 2), draw(seed, count, kinds))
        for seed in seeds
    ]
    models = {
        critic: Run(folder / f"undisturbed-{critic}", steps, critic)
        for critic in {run.with_critic for run in runs}
    }
    prepare_forks()
    waiting = [*models.values(), *runs]
    for first in range(0, len(waiting), AT_ONCE):
        asyncio.run(_go(waiting[first : first + AT_ONCE]))
    reports: list[str] = []
    for run in runs:
        undisturbed = models[run.with_critic]
        assert undisturbed.outcome is not None, undisturbed.stalled
        reports += filter(None, [run.report(undisturbed.outcome)])
    assert not reports, "\n\n".join(reports)
    return runs


@pytest.mark.timeout(900)
def test_a_hundred_faults_change_nothing_of_what_is_learned(tmp_path: Path) -> None:
    disturbed(tmp_path, (1, 2), FEW)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_thousand_faults_change_nothing_of_what_is_learned(tmp_path: Path) -> None:
    seeds: Sequence[int] = (1, 2, 3, 4)
    if "SEED" in os.environ:
        seeds = [int(os.environ["SEED"])]
    if "SEEDS" in os.environ:
        seeds = random.sample(range(10**9), int(os.environ["SEEDS"]))
    runs = disturbed(tmp_path, seeds, MANY)
    kills = sum((run.kills for run in runs), Counter[str]())
    print(f"seeds {seeds}; the learner was killed during: {dict(kills)}")
    assert [run.done for run in runs] == [MANY] * len(runs)
    if "KINDS" not in os.environ:
        assert set(kills) >= {"evaluation", "checkpoint"}
