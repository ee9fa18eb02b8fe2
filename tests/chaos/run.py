"""One run of a job, disturbed or not, and the verdict on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.disturbances import Disturbance, Misfortune
from tests.chaos.judgement import Outcome, outcome_of
from tests.chaos.recipe import a_chaos_recipe
from tests.chaos.stack import JOB, Stack, stack_with_job

_MOST_S = 60.0  # for a job's rest, when nothing disturbs it any more


@dataclass
class Run:
    """One job from its submission to its end."""

    folder: Path
    steps: int
    with_critic: bool = False
    disturbances: Sequence[Disturbance] = ()
    journal: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None
    problems: list[str] = field(default_factory=list)  # of a run that has no outcome

    async def go(self) -> None:
        """Disturb the job, let it end, and look at what it has come to."""
        recipe = a_chaos_recipe(steps=self.steps, with_critic=self.with_critic)
        async with stack_with_job(self.folder, recipe) as stack:
            ending = asyncio.create_task(_until_ended(stack))
            try:
                await self._disturb(stack, ending)
                async with asyncio.timeout(_MOST_S):
                    await ending
                self.outcome = await outcome_of(stack)
            except TimeoutError:
                self.problems.append(f"the job stalls: {await stack.situation()}")
            finally:
                ending.cancel()

    async def _disturb(self, stack: Stack, ending: asyncio.Task[None]) -> None:
        if not self.disturbances:
            stack.start()
            return
        misfortune = Misfortune(stack, self.journal)
        with stack.switches.on("pace"):
            stack.start()
            striking = asyncio.create_task(misfortune.strike(self.disturbances))
            async with asyncio.timeout(_MOST_S + sum(d.after_s for d in self.disturbances)):
                await asyncio.wait({striking, ending}, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    self.problems.append(f"the job ended after {self.done} disturbances")
                    striking.cancel()
                await asyncio.wait({striking})
            if not striking.cancelled():
                striking.result()

    @property
    def done(self) -> int:
        """How many disturbances have begun."""
        return sum(" begins " in line for line in self.journal)

    def verdict(self, undisturbed: Outcome) -> list[str]:
        """What is wrong with the run: nothing, if it came to what an undisturbed one came to."""
        differences = self.outcome.differences(undisturbed) if self.outcome else ()
        return [*self.problems, *differences]


async def _until_ended(stack: Stack) -> None:
    while True:
        record = await stack.user.job(JOB)
        if record is not None and record.state.is_final:
            return
        await asyncio.sleep(0.05)
