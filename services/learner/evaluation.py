"""Evaluation: accuracy on held-out tasks, through the same rollout and grader services.

It has numbers and a ledger of its own, is claimed before training work, and the next weights are
published only when its results are in, so that one version answers all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.exchange import Exchange
from protocol.messages import GradedGroup, RolloutRequest, Task
from protocol.recipe import Purpose, Recipe

from services.learner.feeder import request_seed
from services.learner.intake import Intake


def evaluation_steps(recipe: Recipe) -> list[int]:
    """After how many training steps there is an evaluation: none, every so many, and all."""
    if recipe.evaluation is None:
        return []
    steps = recipe.training.steps
    every = recipe.evaluation.every or steps
    return sorted({*range(0, steps, every), steps})


@dataclass
class Evaluator:
    """Asks for and sums up the evaluations of one job."""

    exchange: Exchange
    job_id: str
    attempt: int
    recipe: Recipe
    tasks: Sequence[Task]  # held out
    begun: int = 0  # evaluations asked for

    def numbers_of(self, step: int) -> range:
        """The numbers of the evaluation requests made after ``step`` training steps."""
        place = evaluation_steps(self.recipe).index(step)
        return range(place * len(self.tasks), (place + 1) * len(self.tasks))

    @property
    def asked(self) -> int:
        """How many requests have been made: every number below."""
        return self.begun * len(self.tasks)

    async def ask(self, step: int, intake: Intake) -> range:
        """Ask for what is not there yet of the evaluation at a step."""
        numbers = self.numbers_of(step)
        self.begun = numbers.stop // len(self.tasks)
        there = intake.have(Purpose.EVAL, numbers)
        for number in numbers:
            if number not in there:
                await self.exchange.ask(self._request(step, number))
        return numbers

    def _request(self, step: int, number: int) -> RolloutRequest:
        assert self.recipe.evaluation is not None
        return RolloutRequest(
            job_id=self.job_id,
            attempt=self.attempt,
            number=number,
            purpose=Purpose.EVAL,
            step=step,
            task=self.tasks[number % len(self.tasks)],
            group_size=self.recipe.evaluation.samples,
            sampling=self.recipe.evaluation_sampling,
            prompt_template=self.recipe.model.prompt_template,
            seed=request_seed(self.recipe.training.seed, Purpose.EVAL, number),
            min_version=step,
        )


def summarize(step: int, groups: Sequence[GradedGroup]) -> dict[str, Any]:
    """The result of an evaluation.

    ``accuracy`` is the mean over tasks of the share of correct responses (avg@k), with the
    half-width of its 95 % interval over tasks; ``process`` the mean process score of correct
    responses. Responses that could not be graded are left out and counted.
    """
    per_task: list[float] = []
    process: list[float] = []
    lengths: list[int] = []
    ungradable = 0
    for group in groups:
        accuracies = [grade.accuracy for grade in group.grades if grade.accuracy is not None]
        ungradable += len(group.grades) - len(accuracies)
        if accuracies:
            per_task.append(sum(accuracies) / len(accuracies))
        for grade in group.grades:
            if grade.accuracy == 1.0 and grade.process_score is not None:
                process.append(grade.process_score)
        if group.group is not None:
            lengths += group.group.lengths.tolist()
    return {
        "step": step,
        "tasks": len(per_task),
        "samples": len(lengths),
        "accuracy": _mean(per_task),
        "accuracy_interval": _half_width(per_task),
        "process": _mean(process),
        "response_length": _mean([float(length) for length in lengths]),
        "ungradable": ungradable,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _half_width(values: Sequence[float]) -> float | None:
    """Half the width of the normal 95 % interval of the mean."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return 1.96 * math.sqrt(variance / len(values))
