"""Evaluation: accuracy on held-out tasks, through the same rollout and grader services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.messages import GradedGroup
from protocol.recipe import Purpose

from services.learner.job.learning import Learning
from services.learner.job.phases.summary import summarize
from services.learner.supply.evaluator import Evaluator, evaluation_place
from services.learner.supply.selection import unselected, whole
from services.learner.training.measured import Measured
from services.learner.training.samples import samples_of
from services.learner.training.scoring import Scoring


@dataclass
class Evaluation:
    """Before the first step, every so many, and after the last."""

    learning: Learning
    evaluator: Evaluator
    scoring: Scoring

    @property
    def is_due(self) -> bool:
        """Whether the present step is to be evaluated."""
        progress = self.learning.progress
        place = evaluation_place(self.learning.recipe, progress.step)
        return place is not None and progress.evaluated <= place

    async def advance(self) -> None:
        """Consumes the evaluation's groups; produces its result, and measures parity on them."""
        learning, progress = self.learning, self.learning.progress
        numbers = await self.evaluator.ask(progress.step, learning.intake)
        groups = await learning.groups(Purpose.EVAL, numbers, phase="evaluate")
        await learning.limits.check_lost(groups, f"the evaluation at step {progress.step}")
        measured = await self._measure_parity(whole(groups))
        result = summarize(progress.step, groups)
        progress.note_evaluation(result)
        await learning.accounts.settle(Purpose.EVAL, unselected(groups), measured.tokens)
        account = await learning.accounts.of(Purpose.EVAL)
        await learning.reporter.evaluation({**result, **measured.metrics}, account)
        learning.lap()

    async def _measure_parity(self, groups: Sequence[GradedGroup]) -> Measured:
        """Evaluation responses were all sampled under this version: compare log-probs on them."""
        learning, sampling = self.learning, self.learning.recipe.evaluation_sampling
        if sampling.top_p < 1 or not groups:
            return Measured()
        samples, _ = samples_of(
            groups,
            self.scoring.without_advantage,
            attempt=learning.attempt.number,
            version=learning.progress.step,
        )
        with learning.control.doing("measures parity"):
            measured = await learning.team.score(samples, sampling.temperature)
        learning.progress.note_parity(measured.metrics)
        return measured
