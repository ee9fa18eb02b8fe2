"""Evaluation: accuracy on held-out tasks, through the same rollout and grader services.

Training continues meanwhile: rollouts that evaluate stay at the version they measure. The result is
reported when all groups are in, at the latest before the next evaluation begins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol.messages import Doing, EvaluationMetrics, EvaluationResult, OtherEvaluation
from protocol.recipe import Purpose

from services.learner.attempt import as_json
from services.learner.job.learning import Learning
from services.learner.job.limits import check_lost
from services.learner.job.phases.summary import summarize
from services.learner.supply.evaluator import Evaluator
from services.learner.supply.selection import used
from services.learner.training.samples import Measured, build_samples
from services.learner.training.scoring import ScoredGroup

_PARITY_RESPONSES = 64


@dataclass
class Evaluation:
    learning: Learning
    evaluator: Evaluator
    _began: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether one is to begin, or has all its groups, or is all that is left."""
        progress = self.learning.progress
        if progress.evaluating is None:
            return self._begins
        has_begun = self.evaluator.step == progress.evaluating
        is_over = self._begins or progress.step == self.learning.recipe.training.steps
        return not has_begun or is_over or not self.evaluator.missing(self.learning.intake)

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
        due = self.evaluator.due_evaluations(progress.step).values()
        position = progress.ledgers[Purpose.EVAL].position
        return progress.step != progress.evaluating and any(position < n.stop for n in due)

    async def _begin(self, step: int) -> None:
        """Consumes nothing; produces the requests that earlier attempts have not had answered."""
        learning, progress = self.learning, self.learning.progress
        self.evaluator.begin(step)
        self._began = time.monotonic()
        if self.evaluator.missing(learning.intake):
            if progress.step == step < learning.recipe.training.steps:
                await learning.snapshot_weights()
            await learning.versions.begin_evaluation(step)
            await self.evaluator.ask(learning.intake)

    async def _end(self, step: int) -> None:
        """Consumes the evaluation's groups; produces its results, and measures parity on them."""
        learning, progress, evaluator = self.learning, self.learning.progress, self.evaluator
        has_waited = bool(evaluator.missing(learning.intake))
        groups = await learning.groups(Purpose.EVAL, evaluator.open_numbers, phase="evaluate")
        await check_lost(learning, groups, f"the evaluation at step {step}")
        first = evaluator.open_numbers.start
        untrained = learning.scoring.comparison_only
        scored = [ScoredGroup(group, untrained) for group in groups]
        parts = {
            name: scored[n.start - first : n.stop - first] for name, n in evaluator.due.items()
        }
        measured = {name: await self._measure(name, part) for name, part in parts.items()}
        tokens = joined([each.tokens for each in measured.values()])
        await learning.settle(Purpose.EVAL, scored, tokens)
        progress.evaluating = None
        await evaluator.withdraw_others(learning.intake, progress.step)
        await self._forget_version()
        account = await learning.account_of(Purpose.EVAL)
        for name, part in parts.items():
            result = ({"name": name} if name else {}) | summarize(
                step, [group.graded for group in part]
            )
            progress.note_evaluation(result)
            await self._report(
                name,
                result | {"seconds": time.monotonic() - self._began, **measured[name].metrics},
                account,
            )
        if has_waited:
            learning.lap()

    async def _report(
        self, name: str, result: Mapping[str, Any], account: Mapping[str, Any]
    ) -> None:
        """Record a result, and the ledger of all evaluations; only the unnamed file has metrics."""
        step, attempt = result["step"], self.learning.attempt
        event_id, words = f"evaluation:{step}", f"evaluation at step {step}"
        scores = EvaluationResult(**as_json(result))
        ledger = as_json(account)
        if not name:
            await attempt.say(
                event_id, words, data=EvaluationMetrics(step=step, evaluation=scores, groups=ledger)
            )
            return
        accuracy = result["accuracy"]
        words += f" on {name}: accuracy {'unknown' if accuracy is None else f'{accuracy:.3f}'}"
        data = OtherEvaluation(step=step, other_evaluation=scores, groups=ledger)
        await attempt.say(f"{event_id}:{name}", words, data=data)

    async def _forget_version(self) -> None:
        await self.learning.drop_snapshot()
        await self.learning.versions.publisher.end_evaluation()

    async def _measure(self, name: str, groups: Sequence[ScoredGroup]) -> Measured:
        """All responses were sampled under one version: compare log-probs on some of them.

        Its tokens are those of all responses, with NaN for what was not compared.
        """
        learning, recipe, step = self.learning, self.learning.recipe, self.evaluator.step
        assert step is not None, "an evaluation has begun"
        sampling = recipe.sampling_of(recipe.evaluations[name])
        samples, _ = build_samples(used(groups), attempt=learning.attempt.number, version=step)
        has_gone_on = learning.progress.step > step
        can_be_compared = sampling.top_p == 1 and (learning.held == step or not has_gone_on)
        some = samples[:_PARITY_RESPONSES] if can_be_compared else []
        measured = Measured()
        if some:
            with learning.control.doing(Doing.MEASURES_PARITY):
                use_snapshot = has_gone_on
                measured = await learning.team.score(
                    some, sampling.temperature, use_snapshot=use_snapshot
                )
            learning.progress.note_parity(measured.metrics)
            await learning.parity.check_sampled(measured, step, sampling.temperature)
        rest = sum(sample.num_own for sample in samples[len(some) :])
        known = measured.tokens or {"logprobs": _unknown(0)}
        tokens = {n: np.append(values, _unknown(rest)) for n, values in known.items()}
        return Measured(measured.metrics, tokens)


def joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What was measured of each token of all parts; NaN where a part has nothing of the name.

    Nothing at all where no token was measured.
    """
    lengths = [max(map(len, part.values()), default=0) for part in parts]
    found = {
        name: np.concatenate(
            [p.get(name, _unknown(n)) for p, n in zip(parts, lengths, strict=True)]
        )
        for name in sorted({name for part in parts for name in part})
    }
    return {} if all(np.isnan(values).all() for values in found.values()) else found


def _unknown(count: int) -> np.ndarray:
    return np.full(count, np.nan, np.float32)
