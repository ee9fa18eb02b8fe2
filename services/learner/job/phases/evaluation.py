"""Evaluation: accuracy on held-out tasks, through the same rollout and grader services.

Training continues meanwhile: rollouts that evaluate stay at the version they measure. The result is
reported when all groups are received, at the latest before the next evaluation begins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol.messages import Doing, EvaluationMetrics, EvaluationResult, OtherEvaluation
from protocol.recipe import Purpose

from services.learner.attempt import to_json
from services.learner.job.learning import Learning
from services.learner.job.limits import check_lost
from services.learner.job.phases.summary import summarize
from services.learner.supply.evaluator import Evaluator
from services.learner.supply.selection import used
from services.learner.training.samples import Measured, build_samples
from services.learner.training.scoring import ScoredGroup

_MAX_COMPARED = 64  # responses; enough tokens for a mean, without scoring them all


@dataclass
class Evaluation:
    learning: Learning
    evaluator: Evaluator
    _began: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether one begins, has all its groups, or is all that remains of the job."""
        progress = self.learning.progress
        if progress.evaluating is None:
            return self._begins
        has_begun = self.evaluator.step == progress.evaluating
        must_end = self._begins or progress.step == self.learning.recipe.training.steps
        return not has_begun or must_end or not self.evaluator.missing(self.learning.intake)

    async def advance(self) -> None:
        progress = self.learning.progress
        if progress.evaluating is None:
            progress.evaluating = progress.step
        if self.evaluator.step != progress.evaluating:
            await self._begin(progress.evaluating)
        else:
            await self._end(progress.evaluating)

    @property
    def _begins(self) -> bool:
        progress = self.learning.progress
        if progress.step == progress.evaluating:
            return False
        position = progress.ledgers[Purpose.EVAL].position
        due = self.evaluator.due_evaluations(progress.step).values()
        return any(position < numbers.stop for numbers in due)

    async def _begin(self, step: int) -> None:
        """Consumes nothing; produces the requests that earlier attempts have no groups for."""
        learning = self.learning
        self.evaluator.begin(step)
        self._began = time.monotonic()
        if self.evaluator.missing(learning.intake):
            if learning.progress.step == step < learning.recipe.training.steps:
                await learning.snapshot_weights()
            await learning.versions.begin_evaluation(step)
            await self.evaluator.ask(learning.intake)

    async def _end(self, step: int) -> None:
        """Consumes the evaluation's groups; produces its results, and measures parity on them."""
        learning = self.learning
        evaluator = self.evaluator
        has_waited = bool(evaluator.missing(learning.intake))
        groups = await learning.receive_groups(
            Purpose.EVAL, evaluator.open_numbers, phase="evaluate"
        )
        await check_lost(learning, groups, f"the evaluation at step {step}")
        first = evaluator.open_numbers.start
        scoring = learning.scoring.comparison_only
        scored = [ScoredGroup(group, scoring) for group in groups]
        parts: dict[str, list[ScoredGroup]] = {}
        measured: dict[str, Measured] = {}
        for name, numbers in evaluator.due.items():
            parts[name] = scored[numbers.start - first : numbers.stop - first]
            measured[name] = await self._compare(name, parts[name])
        tokens = join_tokens([measurement.tokens for measurement in measured.values()])
        await learning.settle(Purpose.EVAL, scored, tokens)
        learning.progress.evaluating = None
        await evaluator.withdraw_others(learning.intake, learning.progress.step)
        await learning.drop_snapshot()
        await learning.versions.publisher.end_evaluation()
        account = await learning.group_account(Purpose.EVAL)
        for name, part in parts.items():
            result: dict[str, Any] = {"name": name} if name else {}
            result |= summarize(step, [group.graded for group in part])
            learning.progress.note_evaluation(result)
            seconds = time.monotonic() - self._began
            await self._report(
                name, {**result, "seconds": seconds, **measured[name].metrics}, account
            )
        if has_waited:
            learning.lap()

    async def _report(
        self, name: str, result: Mapping[str, Any], account: Mapping[str, Any]
    ) -> None:
        """Report a result with the ledger of all evaluations; only the unnamed one has metrics."""
        step = result["step"]
        attempt = self.learning.attempt
        event_id = f"evaluation:{step}"
        message = f"evaluation at step {step}"
        scores = EvaluationResult(**to_json(result))
        ledger = to_json(account)
        if not name:
            metrics = EvaluationMetrics(step=step, evaluation=scores, groups=ledger)
            await attempt.report(event_id, message, data=metrics)
            return
        accuracy = result["accuracy"]
        message += f" on {name}: accuracy {'unknown' if accuracy is None else f'{accuracy:.3f}'}"
        metrics = OtherEvaluation(step=step, other_evaluation=scores, groups=ledger)
        await attempt.report(f"{event_id}:{name}", message, data=metrics)

    async def _compare(self, name: str, groups: Sequence[ScoredGroup]) -> Measured:
        """Compare log-probs of some responses, all of which were sampled with one version.

        The measured tokens are those of all responses, with NaN for responses not compared.
        """
        learning = self.learning
        progress = learning.progress
        recipe = learning.recipe
        step = self.evaluator.step
        assert step is not None, "an evaluation has begun"
        sampling = recipe.evaluation_sampling(recipe.evaluations[name])
        samples, _ = build_samples(used(groups), attempt=learning.attempt.number, version=step)
        is_past = progress.step > step
        has_weights = learning.snapshot_version == step or not is_past
        has_weights = has_weights and not recipe.only_evaluates
        compared = samples[:_MAX_COMPARED] if sampling.top_p == 1 and has_weights else []
        measured = Measured()
        if compared:
            with learning.control.during(Doing.MEASURES_PARITY):
                measured = await learning.team.score(
                    compared, sampling.temperature, use_snapshot=is_past
                )
            progress.note_parity(measured.metrics)
            await learning.parity.check_sampled(measured, step, sampling.temperature)
        num_missing = sum(sample.num_own for sample in samples[len(compared) :])
        columns = measured.tokens or {"logprobs": _nans(0)}
        tokens = {n: np.append(values, _nans(num_missing)) for n, values in columns.items()}
        return Measured(measured.metrics, tokens)


def join_tokens(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join the measurements of the tokens of several parts; NaN for those a part lacks.

    Return nothing if no token was measured.
    """
    lengths = [max(map(len, part.values()), default=0) for part in parts]
    columns: dict[str, np.ndarray] = {}
    for name in sorted({name for part in parts for name in part}):
        pairs = zip(parts, lengths, strict=True)
        columns[name] = np.concatenate([part.get(name, _nans(n)) for part, n in pairs])
    is_empty = all(np.isnan(values).all() for values in columns.values())
    return {} if is_empty else columns


def _nans(count: int) -> np.ndarray:
    return np.full(count, np.nan, np.float32)
