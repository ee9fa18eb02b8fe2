"""Training: from a step's groups to the next version of the policy."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from protocol.messages import Doing, StepMetrics
from protocol.recipe import Purpose

from services.learner.attempt import to_json
from services.learner.job.learning import Learning
from services.learner.job.limits import check_finite, check_lost
from services.learner.job.parity import MIN_COMPARED_TOKENS
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Selection
from services.learner.training.flops import Flops
from services.learner.training.samples import GroupFacts, Sample, build_samples
from services.learner.training.scoring import ScoredGroup

_COMPARE_EVERY = 10  # steps, so that comparing takes a small part of the time
_MIN_COMPARED = 16  # responses


@dataclass
class Training:
    learning: Learning
    feeder: Feeder
    flops: Flops
    _compared_version: int | None = None

    @property
    def is_due(self) -> bool:
        return self.learning.progress.step < self.learning.recipe.training.steps

    async def advance(self) -> None:
        """Consumes one step's groups, in the order of their requests; produces the next policy."""
        began = time.monotonic()
        learning = self.learning
        progress = learning.progress
        training = learning.recipe.training
        selection = await self._select()
        samples, facts = self._build_samples(selection.kept, progress.step)
        assert facts.staleness_max <= training.max_staleness, "stale groups are dropped"
        async with learning.team.turn():
            await self._compare(selection.kept)
            with learning.control.during(Doing.TRAINS, progress.step + 1, timed="train"):
                measured = await learning.team.train(samples)
            await learning.settle(Purpose.TRAIN, selection.looked_at, measured.tokens)
            progress.step += 1
            progress.keep_rate = selection.keep_rate
            metrics = {**measured.metrics, **self.feeder.curriculum.measure(selection.kept)}
            inspected = [group.graded for group in selection.looked_at]
            self.feeder.curriculum.note(inspected, progress.step)
            self.feeder.admit(self._selection().lookahead)
            await learning.versions.publish()
        await self._report(selection, facts, metrics, time.monotonic() - began)
        if self._is_compared_next and learning.snapshot_version is None:
            await learning.snapshot_weights()
        needs_checkpoint = not (progress.is_replayed and learning.versions.saved)
        if progress.step % training.checkpoint_every == 0 and needs_checkpoint:
            await learning.versions.begin_save()
        await check_finite(learning, f"step {progress.step}", measured.metrics)

    @property
    def _is_compared_next(self) -> bool:
        """Whether tokens of the current version are compared at a later version."""
        progress = self.learning.progress
        training = self.learning.recipe.training
        is_last = progress.step >= training.steps - 1
        is_due = progress.step % _COMPARE_EVERY == 0 and not (progress.is_replayed or is_last)
        return is_due and training.max_staleness > 0

    @property
    def _temperature(self) -> float:
        return self.learning.recipe.rollout.sampling.temperature

    async def _compare(self, groups: Sequence[ScoredGroup]) -> None:
        """Sometimes compare tokens of a step, by the weights that sampled them.

        These are the current weights, or a copy that was made after an earlier step.
        """
        learning = self.learning
        progress = learning.progress
        snapshot = learning.snapshot_version
        version = progress.step if snapshot is None else snapshot
        is_first = self._compared_version is None
        is_due = is_first or snapshot is not None or version % _COMPARE_EVERY == 0
        if version == self._compared_version or progress.is_replayed or not is_due:
            return
        compared = _select_compared(self._build_samples(groups, version)[0])
        if compared:
            with learning.control.during(Doing.MEASURES_PARITY, timed="parity"):
                measured = await learning.team.score(
                    compared, self._temperature, use_snapshot=version < progress.step
                )
            agrees = await learning.parity.check_sampled(measured, version, self._temperature)
            self._compared_version = version
            # The log's groups are not trained either.
            if not agrees:
                await learning.intake.discard(Purpose.TRAIN)
            learning.control.obey()
        is_too_old = version < progress.step - learning.recipe.training.max_staleness
        if progress.evaluating is None and (compared or is_too_old):
            await learning.drop_snapshot()

    async def _select(self) -> Selection:
        """Look at groups, each once it and all before it are received, until they suffice."""
        learning = self.learning
        selection = self._selection()
        while not selection.is_complete:
            learning.control.obey()
            self.feeder.admit(selection.lookahead)
            number = selection.next_number
            began = time.monotonic()
            (group,) = await learning.receive_groups(Purpose.TRAIN, range(number, number + 1))
            selection.look(group, time.monotonic() - began)
            await check_lost(learning, selection.to_check, f"step {selection.step}")
        return selection

    def _selection(self) -> Selection:
        """Return the selection of the current step, before it has looked at any group."""
        learning = self.learning
        progress = learning.progress
        return Selection(
            recipe=learning.recipe,
            scoring=learning.scoring,
            step=progress.step,
            first=progress.ledgers[Purpose.TRAIN].position,
            keep_rate=progress.keep_rate,
        )

    def _build_samples(
        self, groups: Sequence[ScoredGroup], version: int
    ) -> tuple[list[Sample], GroupFacts]:
        learning = self.learning
        return build_samples(
            groups,
            attempt=learning.attempt.number,
            version=version,
            kept_kv=learning.recipe.rollout.kv_after_sync == "keep",
        )

    async def _report(
        self,
        selection: Selection,
        facts: GroupFacts,
        metrics: Mapping[str, float],
        seconds: float,
    ) -> None:
        learning = self.learning
        progress = learning.progress
        step = progress.step
        counts = selection.counts(facts.groups_with_signal)
        progress.note_update({**metrics, **counts})
        progress.note_work(learning.lap(), facts.responses, facts.tokens)
        spent = learning.phase_seconds()
        train_seconds = spent.get("train", 0.0)
        trained_share = metrics.get("trained_share", 1.0)
        data = {
            **facts.means(len(selection.kept)),
            **metrics,
            **facts.throughput(seconds, learning.team.num_ranks),
            **self.flops.of(facts.trained_lengths, train_seconds, trained_share),
            **counts,
            **progress.note_phases(spent),
            **learning.parity.take_results(),
            "step": step,
            "dropped_responses": dict(facts.dropped_responses),
            "groups": await learning.group_account(Purpose.TRAIN),
            "bill": await learning.make_bill(),
        }
        step_metrics = StepMetrics(**to_json(data))
        progress.metrics = {**step_metrics.metrics, "step": step}
        await learning.attempt.report(f"step:{step}", f"step {step}", data=step_metrics)
        if selection.is_undersampled:
            await self._warn_of_undersampling(selection)
        if step > progress.steps_reported:
            await learning.attempt.update(step=step, attempts_since_checkpoint=0, failures=0)

    async def _warn_of_undersampling(self, selection: Selection) -> None:
        step = self.learning.progress.step
        num_kept = len(selection.kept)
        needed = selection.recipe.training.groups_per_step
        outcome = (
            f"it trained on {num_kept} of {needed} groups" if num_kept else "it made no update"
        )
        message = (
            f"step {step}: {outcome}: of {selection.judged} groups, the limit by "
            "training.max_oversampling, no more had a signal; raise it, or give tasks that the "
            "policy solves sometimes"
        )
        await self.learning.attempt.warn(
            f"undersampled:{step}",
            message,
            kept=num_kept,
            judged=selection.judged,
            surplus=selection.surplus,
        )


def _select_compared(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples with tokens of the version, or none if they have too few of them."""
    candidates = [sample for sample in samples if sample.on_version.any()]
    ends = list(accumulate(int(sample.on_version.sum()) for sample in candidates))
    last = bisect_left(ends, MIN_COMPARED_TOKENS)
    return candidates[: max(_MIN_COMPARED, last + 1)] if last < len(candidates) else []
