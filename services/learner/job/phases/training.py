"""Training: the step that the whole stack exists for."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from protocol.messages import Doing, Notice, StepMetrics
from protocol.recipe import Purpose

from services.learner.attempt import as_json
from services.learner.job.learning import Learning
from services.learner.job.limits import check_finite, check_lost
from services.learner.job.parity import LEAST_TOKENS
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Selection
from services.learner.training.flops import Flops
from services.learner.training.samples import GroupFacts, Sample, build_samples
from services.learner.training.scoring import ScoredGroup

_COMPARE_EVERY = 10  # steps
_COMPARED = 16  # responses


@dataclass
class Training:
    learning: Learning
    feeder: Feeder
    flops: Flops
    _compared: int | None = None  # the last version of which tokens were compared

    @property
    def is_due(self) -> bool:
        return self.learning.progress.step < self.learning.recipe.training.steps

    async def advance(self) -> None:
        """Consumes one step's groups, in the order they were asked; produces the next policy."""
        began, learning, progress = time.monotonic(), self.learning, self.learning.progress
        selection = await self._select()
        samples, facts = self._samples_of(selection.kept, progress.step)
        assert facts.staleness_max <= learning.recipe.training.max_staleness, "stale are dropped"
        async with learning.team.turn():
            await self._compare(selection.kept)
            with learning.control.doing(Doing.TRAINS, progress.step + 1, timed="train"):
                measured = await learning.team.train(samples)
            await learning.settle(Purpose.TRAIN, selection.looked_at, measured.tokens)
            progress.step += 1
            progress.keep_rate = selection.keep_rate
            self.feeder.admit(self._selection().lookahead)
            await learning.versions.publish()
        await self._report(selection, facts, measured.metrics, time.monotonic() - began)
        if self._is_compared_next and learning.held is None:
            await learning.snapshot_weights()
        every, is_saved = learning.recipe.training.checkpoint_every, learning.versions.saved
        if progress.step % every == 0 and not (progress.is_replayed and is_saved):
            await learning.versions.begin_save()
        await check_finite(learning, f"step {progress.step}", measured.metrics)

    @property
    def _is_compared_next(self) -> bool:
        """Whether tokens of the present version are to be compared once it has gone by."""
        progress, training = self.learning.progress, self.learning.recipe.training
        is_last = progress.step >= training.steps - 1
        is_due = progress.step % _COMPARE_EVERY == 0 and not (progress.is_replayed or is_last)
        return is_due and training.max_staleness > 0

    @property
    def _temperature(self) -> float:
        return self.learning.recipe.rollout.sampling.temperature

    async def _compare(self, groups: Sequence[ScoredGroup]) -> None:
        """Now and then compare some tokens of a step, by the weights that sampled them.

        Those are copied after the step before, or are the present ones.
        """
        learning, progress = self.learning, self.learning.progress
        version = progress.step if learning.held is None else learning.held
        is_first = self._compared is None  # of this attempt
        is_due = is_first or learning.held is not None or version % _COMPARE_EVERY == 0
        if version == self._compared or progress.is_replayed or not is_due:
            return
        some = _some_of(self._samples_of(groups, version)[0])
        if some:
            with learning.control.doing(Doing.MEASURES_PARITY, timed="parity"):
                measured = await learning.team.score(
                    some, self._temperature, use_snapshot=version < progress.step
                )
            await learning.parity.check_sampled(measured, version, self._temperature)
            self._compared = version
            if (
                learning.control.pause_error is not None
            ):  # nor is anything trained that lies in the log
                await learning.intake.discard(Purpose.TRAIN)
            learning.control.obey()
        has_gone = version < progress.step - learning.recipe.training.max_staleness
        if progress.evaluating is None and (some or has_gone):
            await learning.drop_snapshot()

    async def _select(self) -> Selection:
        """Look at groups, each as soon as it and all before it are there, until it is enough."""
        learning, selection = self.learning, self._selection()
        while not selection.is_complete:
            learning.control.obey()
            self.feeder.admit(selection.lookahead)
            number, began = selection.next_number, time.monotonic()
            (group,) = await learning.groups(Purpose.TRAIN, range(number, number + 1))
            selection.look(group, time.monotonic() - began)
            await check_lost(learning, selection.to_check, f"step {selection.step}")
        return selection

    def _selection(self) -> Selection:
        """The selection of the present step, before it has looked at any group."""
        learning, progress = self.learning, self.learning.progress
        return Selection(
            recipe=learning.recipe,
            scoring=learning.scoring,
            step=progress.step,
            first=progress.ledgers[Purpose.TRAIN].position,
            keep_rate=progress.keep_rate,
        )

    def _samples_of(
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
        learning, progress = self.learning, self.learning.progress
        counts = selection.counts(facts.groups_with_signal)
        progress.note_update({**metrics, **counts})
        progress.note_work(learning.lap(), facts.responses, facts.tokens)
        spent = learning.phase_seconds()
        data = {
            **facts.means(len(selection.kept)),
            **metrics,
            **facts.throughput(seconds, learning.team.num_ranks),
            **self.flops.of(facts.trained_lengths, spent.get("train", 0.0)),
            **counts,
            **progress.note_phases(spent),
            **learning.parity.told(),
            "step": progress.step,
            "dropped_responses": dict(facts.dropped_responses),
            "groups": await learning.account_of(Purpose.TRAIN),
        }
        event_data = StepMetrics(**as_json(data))
        progress.metrics = {**event_data.metrics, "step": progress.step}
        step = progress.step
        await learning.attempt.say(f"step:{step}", f"step {step}", data=event_data)
        if selection.is_undersampled:
            await self._warn_of_undersampling(selection)
        if progress.step > progress.made_before:
            await learning.attempt.update(
                step=progress.step, attempts_since_checkpoint=0, failures=0
            )

    async def _warn_of_undersampling(self, selection: Selection) -> None:
        step, kept = self.learning.progress.step, len(selection.kept)
        wanted = selection.recipe.training.groups_per_step
        did = f"it trained on {kept} of {wanted} groups" if kept else "it made no update"
        message = (
            f"step {step}: {did}: of {selection.judged} groups, the most that "
            "training.max_oversampling allows, no more had a signal; raise it, or give tasks that "
            "the policy solves sometimes"
        )
        data = Notice(
            details={"kept": kept, "judged": selection.judged, "surplus": selection.surplus}
        )
        await self.learning.attempt.say(f"undersampled:{step}", message, level="warn", data=data)


def _some_of(samples: Sequence[Sample]) -> list[Sample]:
    """Some with tokens of the version, as many as are to be compared; none if these are too few."""
    own = [sample for sample in samples if sample.on_version.any()]
    ends = list(accumulate(int(sample.on_version.sum()) for sample in own))
    enough = bisect_left(ends, LEAST_TOKENS)
    return own[: max(_COMPARED, enough + 1)] if enough < len(own) else []
