"""The evaluator: asks for the groups of evaluations on held-out tasks.

They have numbers of their own, are claimed before training work, and the next weights are published
only when their results are in, so that one version answers all of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.messages import RolloutRequest, Task
from protocol.recipe import Purpose, Recipe

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake


def evaluation_place(recipe: Recipe, step: int) -> int | None:
    """Which evaluation, counted from 0, comes after so many training steps; None if none does.

    There is one before the first step, one every so many, and one after the last.
    """
    if recipe.evaluation is None:
        return None
    every = recipe.evaluation.every or recipe.training.steps
    is_due = step % every == 0 or step == recipe.training.steps
    return math.ceil(step / every) if is_due else None


@dataclass
class Evaluator:
    """Asks for the evaluations of one job."""

    attempt: Attempt
    tasks: Sequence[Task]  # held out
    begun: int = 0  # evaluations asked for
    _step: int = 0

    @property
    def asked(self) -> int:
        """How many requests have been made: every number below."""
        return self.begun * len(self.tasks)

    @property
    def open_numbers(self) -> range:
        """The numbers of the last evaluation that was asked for."""
        return range(max(0, self.asked - len(self.tasks)), self.asked)

    async def ask(self, step: int, intake: Intake) -> range:
        """Ask for what is not there yet of the evaluation at a step; returns all its numbers."""
        place = evaluation_place(self.attempt.recipe, step)
        assert place is not None, "no evaluation is due"
        self._step, self.begun = step, place + 1
        there = intake.have(Purpose.EVAL, self.open_numbers)
        for number in self.open_numbers:
            if number not in there:
                await self.attempt.exchange.ask(self.request(number))
        return self.open_numbers

    def request(self, number: int) -> RolloutRequest:
        """The request with this number, one of the last evaluation's."""
        recipe = self.attempt.recipe
        assert recipe.evaluation is not None
        return self.attempt.request(
            Purpose.EVAL,
            number,
            step=self._step,
            task=self.tasks[number % len(self.tasks)],
            group_size=recipe.evaluation.samples,
            sampling=recipe.evaluation_sampling,
            min_version=self._step,
        )
