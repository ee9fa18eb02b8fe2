"""The evaluator: asks for the groups of evaluations on held-out tasks.

They have numbers of their own, and name the one version that may answer them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from protocol.messages import RolloutRequest, Task, group_key
from protocol.recipe import Evaluation, Purpose, Recipe
from protocol.streams import requests_for

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake

HeldOut = Mapping[str, Sequence[Task]]  # tasks by the name of the evaluation that asks them


def due_evaluations(recipe: Recipe, held_out: HeldOut, step: int) -> dict[str, range]:
    """The evaluations after so many training steps: the numbers of each one's groups, by name.

    There is one before the first step, one every so many, and one after the last.
    """
    evaluations, steps = recipe.evaluations, recipe.training.steps
    due = [name for name, each in evaluations.items() if _is_due(each, step, steps)]
    first = sum(
        math.ceil(step / (each.every or steps)) * len(held_out[name])
        for name, each in evaluations.items()
    )
    ends = accumulate((len(held_out[name]) for name in due), initial=first)
    return {
        name: range(end, end + len(held_out[name])) for name, end in zip(due, ends, strict=False)
    }


def _is_due(evaluation: Evaluation, step: int, steps: int) -> bool:
    return step % (evaluation.every or steps) == 0 or step == steps


@dataclass
class Evaluator:
    attempt: Attempt
    held_out: HeldOut
    asked: int = 0  # how many requests have been made: every number below
    step: int | None = None  # whose evaluations are under way, or were the last
    due: Mapping[str, range] = field(default_factory=dict[str, range])

    @property
    def open_numbers(self) -> range:
        """The numbers of the evaluations that were asked for last."""
        ranges = list(self.due.values())
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)

    def begin(self, step: int) -> None:
        self.step, self.due = step, self.at(step)
        self.asked = self.open_numbers.stop

    def at(self, step: int) -> dict[str, range]:
        return due_evaluations(self.attempt.recipe, self.held_out, step)

    def missing(self, intake: Intake) -> list[int]:
        return [number for number in self.open_numbers if not intake.has(Purpose.EVAL, number)]

    async def ask(self, intake: Intake) -> None:
        """Ask for what is missing; groups arrive meanwhile, also of earlier attempts."""
        for number in self.open_numbers:
            if not intake.has(Purpose.EVAL, number):
                await self.attempt.exchange.ask(self.request(number))

    async def withdraw_others(self, intake: Intake, step: int) -> None:
        """Withdraw all requests but those for what the evaluations at a step lack."""
        attempt, wanted = self.attempt, (n for due in self.at(step).values() for n in due)
        kept = [group_key(Purpose.EVAL, n) for n in wanted if not intake.has(Purpose.EVAL, n)]
        stream = requests_for(Purpose.EVAL, attempt.recipe.environment is not None)
        await attempt.exchange.withdraw(stream, attempt.job_id, attempt.number, kept)

    def request(self, number: int) -> RolloutRequest:
        assert self.step is not None, "an evaluation has begun"
        name, numbers = next(item for item in self.due.items() if number in item[1])
        recipe = self.attempt.recipe
        return self.attempt.request(
            Purpose.EVAL,
            number,
            step=self.step,
            task=self.held_out[name][number - numbers.start],
            group_size=recipe.evaluations[name].samples,
            sampling=recipe.sampling_of(recipe.evaluations[name]),
            min_version=self.step,
            version=self.step,
        )
