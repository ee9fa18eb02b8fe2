"""The evaluator: requests the groups of evaluations on held-out tasks.

They have numbers of their own, and each names the only version that may sample it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.messages import RolloutRequest, Task, group_key
from protocol.recipe import Evaluation, Purpose, Recipe
from protocol.streams import request_stream

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake

HeldOut = Mapping[str, Sequence[Task]]  # tasks by the name of their evaluation


def due_evaluations(recipe: Recipe, held_out: HeldOut, step: int) -> dict[str, range]:
    """Return the numbers of the groups of each evaluation after ``step`` training steps.

    Evaluations are due before the first step, at their interval, and after the last step.
    """
    steps = recipe.training.steps
    number = 0
    for name, evaluation in recipe.evaluations.items():
        earlier = math.ceil(step / (evaluation.every or steps or 1))
        number += earlier * len(held_out[name])
    due: dict[str, range] = {}
    for name, evaluation in recipe.evaluations.items():
        if _is_due(evaluation, step, steps):
            due[name] = range(number, number + len(held_out[name]))
            number = due[name].stop
    return due


def _is_due(evaluation: Evaluation, step: int, steps: int) -> bool:
    return step == steps or step % (evaluation.every or steps) == 0


@dataclass
class Evaluator:
    attempt: Attempt
    held_out: HeldOut
    next_number: int = 0  # every number below has been requested
    step: int | None = None  # of the current or the last evaluations
    due: Mapping[str, range] = field(default_factory=dict[str, range])

    @property
    def open_numbers(self) -> range:
        """The numbers of the evaluations that were requested last."""
        ranges = list(self.due.values())
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)

    def begin(self, step: int) -> None:
        self.step = step
        self.due = self.due_evaluations(step)
        self.next_number = self.open_numbers.stop

    def due_evaluations(self, step: int) -> dict[str, range]:
        return due_evaluations(self.attempt.recipe, self.held_out, step)

    def missing(self, intake: Intake) -> list[int]:
        return [number for number in self.open_numbers if not intake.has(Purpose.EVAL, number)]

    async def ask(self, intake: Intake) -> None:
        """Request the missing groups; meanwhile groups arrive, also of earlier attempts."""
        for number in self.open_numbers:
            if not intake.has(Purpose.EVAL, number):
                await self.attempt.exchange.ask(self.request(number))

    async def withdraw_others(self, intake: Intake, step: int) -> None:
        """Withdraw all requests except for the missing groups of the evaluations at a step."""
        attempt = self.attempt
        missing_keys = [
            group_key(Purpose.EVAL, number)
            for numbers in self.due_evaluations(step).values()
            for number in numbers
            if not intake.has(Purpose.EVAL, number)
        ]
        stream = request_stream(Purpose.EVAL, attempt.recipe.environment is not None)
        await attempt.exchange.withdraw(stream, attempt.job_id, attempt.number, missing_keys)

    def request(self, number: int) -> RolloutRequest:
        assert self.step is not None, "an evaluation has begun"
        name, numbers = next(item for item in self.due.items() if number in item[1])
        recipe = self.attempt.recipe
        evaluation = recipe.evaluations[name]
        return self.attempt.request(
            Purpose.EVAL,
            number,
            step=self.step,
            task=self.held_out[name][number - numbers.start],
            group_size=evaluation.samples,
            sampling=recipe.evaluation_sampling(evaluation),
            min_version=self.step,
            version=self.step,
        )
