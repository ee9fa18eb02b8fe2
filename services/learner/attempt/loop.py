"""The training loop: what the learner does with one job, from its last checkpoint to its end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from protocol.messages import ActiveJob, GradedGroup, Requested
from protocol.recipe import Purpose, Recipe

from services.learner.attempt.control import PauseRequested
from services.learner.attempt.evaluation import evaluation_place, summarize
from services.learner.attempt.parts import Parts
from services.learner.attempt.reconciler import Reconciler
from services.learner.attempt.report import numbers_in
from services.learner.durable.progress import LearnedNothing, Progress
from services.learner.durable.sample_facts import sampled_groups
from services.learner.supply.lost import NothingCanWork, too_much_lost, why_none_can_work
from services.learner.supply.selection import SURPLUS, Selection, unselected
from services.learner.training.measured import Measured
from services.learner.training.samples import GroupFacts, Sample, samples_of
from services.learner.training.scoring import Scoring

log = logging.getLogger(__name__)


@dataclass
class Learning:
    """One attempt at one job."""

    job_id: str
    attempt: int
    recipe: Recipe
    parts: Parts
    scoring: Scoring
    replay_until: int  # steps that an earlier attempt has already made, and told of
    progress: Progress = field(default_factory=Progress)
    saved: str = ""  # the name of the newest checkpoint
    stopwatch: float = field(default_factory=time.monotonic)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        parts, active = (
            self.parts,
            ActiveJob(job_id=self.job_id, attempt=self.attempt, recipe=self.recipe),
        )
        askers = (parts.feeder, parts.pretraining.feeder, parts.evaluator)
        self.reconciler = Reconciler(parts.exchange, active, askers, parts.intake, parts.publisher)

    async def learn(self) -> None:
        """Go on from where the state says until all steps are made.

        Raises:
            PauseRequested: if the user wants that, or is to decide how it goes on.
            LearnedNothing: if no step has changed the policy.
        """
        await self.parts.control.refresh()
        await self._publish_if_current()
        while not self._finished:
            await self._advance()
        if why := self.progress.why_nothing_was_learned():
            raise LearnedNothing(why)

    async def _advance(self) -> None:
        """Evaluate or pretrain the critic if that is due, else train one step."""
        self.parts.control.obey()
        if self._evaluation_is_due:
            await self._evaluate()
        elif self.parts.pretraining.is_due(self.progress.pretrained):
            await self._pretrain_step()
        else:
            await self._train_step()

    async def _train_step(self) -> None:
        """Consumes one step's groups, in the order they were asked; produces the next policy."""
        began = time.monotonic()
        selection = await self._select()
        samples, facts = self._samples_of(selection.kept)
        assert facts.staleness_max <= self.recipe.training.max_staleness, "stale ones are dropped"
        with self.parts.control.doing(f"trains step {self.step + 1}", timed="train"):
            measured = await self.parts.team.train(samples)
        await self._settle(Purpose.TRAIN, selection.fates, measured.tokens)
        self.progress.step += 1
        self.progress.keep_rate = selection.keep_rate
        self.parts.feeder.admit(self._selection().outlook)
        await self._publish_if_current()
        await self._report(selection, facts, measured.metrics, time.monotonic() - began)
        if self.step % self.recipe.training.checkpoint_every == 0 and not self._replaying:
            await self.save_checkpoint()
        await self._look_for_non_finite(f"step {self.step}", measured.metrics)

    async def _select(self) -> Selection:
        """Look at groups, each as soon as it and all before it are there, until it is enough."""
        selection = self._selection()
        while not selection.is_complete:
            self.parts.control.obey()
            self.parts.feeder.admit(selection.outlook)
            number, began = selection.next_number, time.monotonic()
            (group,) = await self._groups(Purpose.TRAIN, range(number, number + 1))
            selection.look(group, time.monotonic() - began)
            await self._pause_if_lost(selection.to_check, f"step {self.step}")
        return selection

    def _selection(self) -> Selection:
        """The selection of the present step, before it has looked at any group."""
        return Selection(
            recipe=self.recipe,
            has_signal=self.scoring.has_signal,
            step=self.step,
            first=self.progress.ledgers[Purpose.TRAIN].position,
            keep_rate=self.progress.keep_rate,
        )

    async def _pretrain_step(self) -> None:
        """Consumes one step's groups, sampled under version 0; produces a better critic."""
        began, pretraining = time.monotonic(), self.parts.pretraining
        pretraining.admit(self.progress.pretrained)
        groups = await self._groups(
            Purpose.PRETRAIN, pretraining.numbers_of(self.progress.pretrained)
        )
        await self._pause_if_lost(groups, f"pretrain step {self.progress.pretrained}")
        samples, facts = self._samples_of(_whole(groups))
        words = f"pretrains step {self.progress.pretrained + 1}"
        with self.parts.control.doing(words, timed="pretrain"):
            measured = await self.parts.team.pretrain(samples)
        await self._settle(Purpose.PRETRAIN, unselected(groups), measured.tokens)
        self.progress.pretrained += 1
        await self._report_pretraining(facts, measured.metrics, time.monotonic() - began)
        done = not pretraining.is_due(self.progress.pretrained)
        if done:
            await pretraining.keep_critic(self.parts.team)
        if done or self.progress.pretrained % self.recipe.training.checkpoint_every == 0:
            await self.save_checkpoint()
        moment = f"pretrain step {self.progress.pretrained}"
        await self._look_for_non_finite(moment, measured.metrics)
        self.stopwatch = time.monotonic()

    async def _evaluate(self) -> None:
        """Consumes the evaluation's groups; produces its result, and measures parity on them."""
        numbers = await self.parts.evaluator.ask(self.step, self.parts.intake)
        groups = await self._groups(Purpose.EVAL, numbers, phase="evaluate")
        await self._pause_if_lost(groups, f"the evaluation at step {self.step}")
        measured = await self._measure_parity(_whole(groups))
        result = summarize(self.step, groups)
        self.progress.note_evaluation(result)
        await self._settle(Purpose.EVAL, unselected(groups), measured.tokens)
        told = {**result, **measured.metrics}
        await self.parts.reporter.evaluation(told, await self.account(Purpose.EVAL))
        self.stopwatch = time.monotonic()

    async def _measure_parity(self, groups: Sequence[GradedGroup]) -> Measured:
        """Evaluation responses were all sampled under this version: compare log-probs on them."""
        sampling = self.recipe.evaluation_sampling
        if sampling.top_p < 1 or not groups:
            return Measured()
        samples, _ = samples_of(
            groups, self.scoring.without_advantage, attempt=self.attempt, version=self.step
        )
        with self.parts.control.doing("measures parity"):
            measured = await self.parts.team.score(samples, sampling.temperature)
        self.progress.note_parity(measured.metrics)
        return measured

    async def _publish_if_current(self) -> None:
        """Publish, unless an earlier attempt's steps are being replayed: nobody waits for those."""
        if not self._replaying:
            with self.parts.control.doing(f"publishes version {self.step}", timed="publish"):
                await self.parts.publisher.publish(self.parts.team, self.step)

    async def _report(
        self,
        selection: Selection,
        facts: GroupFacts,
        metrics: Mapping[str, float],
        seconds: float,
    ) -> None:
        counts = selection.counts(facts.groups_with_signal)
        self.progress.note_update({**metrics, **counts})
        self._note_work(facts)
        spent = self.parts.reporter.phase_seconds()
        data = {
            **facts.means(len(selection.kept)),
            **metrics,
            **facts.throughput(seconds, self.parts.team.num_ranks),
            **self.parts.flops.of(facts.trained_lengths, spent.get("train", 0.0)),
            **counts,
            **self.progress.note_phases(spent),
            "step": self.step,
            "dropped_responses": dict(facts.dropped_responses),
            "groups": await self.account(Purpose.TRAIN),
        }
        self.progress.metrics = numbers_in(data)
        await self.parts.reporter.step(self.step, data)
        if selection.is_undersampled:
            await self.parts.reporter.undersampled(self.step, selection)
        if self.step > self.replay_until:
            await self.parts.exchange.update_job(
                self.job_id,
                self.attempt,
                step=self.step,
                attempts_since_checkpoint=0,
                failures=0,
            )

    async def _report_pretraining(
        self, facts: GroupFacts, metrics: Mapping[str, float], seconds: float
    ) -> None:
        data = {
            **metrics,
            **facts.throughput(seconds, self.parts.team.num_ranks),
            **self.progress.note_phases(self.parts.reporter.phase_seconds()),
            "pretrain_step": self.progress.pretrained,
            "groups": await self.account(Purpose.PRETRAIN),
        }
        await self.parts.reporter.pretrain_step(self.progress.pretrained, data)

    async def account(self, purpose: Purpose) -> dict[str, Any]:
        """The ledger of a purpose at this moment: asked = trained + dropped + under way."""
        parts = self.parts
        asked = {
            Purpose.TRAIN: parts.feeder.asked,
            Purpose.PRETRAIN: parts.pretraining.feeder.asked,
            Purpose.EVAL: parts.evaluator.asked,
        }[purpose]
        under_way = await parts.exchange.under_way(self.job_id)
        there = under_way | parts.intake.keys_waiting()
        return self.progress.ledgers[purpose].account(asked, there)

    def drop_leftovers(self) -> None:
        """All steps are made: what was asked for beyond them serves nobody."""
        ledger = self.progress.ledgers[Purpose.TRAIN]
        ledger.drop(SURPLUS, self.parts.feeder.asked - ledger.position)

    async def save_checkpoint(self) -> None:
        """Make everything up to this step durable."""
        with self.parts.control.doing("writes a checkpoint", timed="checkpoint"):
            await self.parts.store.sync()
            await self.parts.intake.roll_log()
            state = self.progress.state(self.parts.intake.first_segment_needed)
            export = partial(self.parts.publisher.export, self.parts.team, self.step)
            await self.parts.checkpoints.save(self.parts.team, state, self._commit, export)
            await self.parts.intake.drop_segments(self.parts.checkpoints.first_segment_needed())
        self.saved = self.progress.checkpoint_name

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of this moment."""
        return self.saved == self.progress.checkpoint_name

    @property
    def is_ahead(self) -> bool:
        """Whether the policy is ahead of what all checkpoints hold."""
        return self.step > 0 and not self.is_saved and not self._replaying

    async def _commit(self) -> None:
        """The fence: a superseded attempt stops here, before its checkpoint counts."""
        await self.parts.exchange.update_job(
            self.job_id, self.attempt, attempts_since_checkpoint=0, failures=0, error=None
        )

    async def _pause_if_lost(self, groups: Sequence[GradedGroup], moment: str) -> None:
        """Above the recipe's limits the user decides: PAPO must not silently become GRPO.

        Who resumes the job accepts what it paused for. The checkpoint remembers it; an attempt that
        begins from an older one asks again, unless an earlier attempt has made the step.

        Raises:
            NothingCanWork: if no worker can work on any of them, nor could on one before.
        """
        if not groups or self._replaying:
            return
        last, ledgers, reporter = groups[-1], self.progress.ledgers, self.parts.reporter
        accepted = self.progress.accepted[last.purpose]
        lost = too_much_lost(groups, self.recipe, accepted)
        end = None if ledgers[last.purpose].trained else why_none_can_work(groups, accepted)
        if lost or end:
            self.progress.accepted[last.purpose] = last.number + 1
        if end:
            await self.save_checkpoint()
            raise NothingCanWork(f"none of the {len(groups)} groups of {moment} can work: {end}")
        why = [await reporter.lost(self.attempt, moment, part, most) for part, most in lost]
        if why:
            await self._pause("\n".join(why))

    async def _look_for_non_finite(self, moment: str, metrics: Mapping[str, float]) -> None:
        """Whatever was not finite was not learned from; the user may want to know before more."""
        names = [name for name, value in metrics.items() if not math.isfinite(value)]
        if not names:
            return
        why = await self.parts.reporter.non_finite(moment, names)
        if self.recipe.training.on_nonfinite == "pause" and not self._replaying:
            await self._pause(why)

    async def _pause(self, why: str) -> None:
        """Pause as if the user had asked for it."""
        await self.parts.exchange.request_state(self.job_id, Requested.PAUSE)
        await self.parts.control.refresh()
        if self.parts.control.requested is Requested.PAUSE:
            raise PauseRequested(why)

    async def _groups(
        self, purpose: Purpose, numbers: range, phase: str = "wait_for_groups"
    ) -> list[GradedGroup]:
        """Wait for the groups with these numbers."""
        if self._replaying and len(self.parts.intake.have(purpose, numbers)) < len(numbers):
            await self._end_replay()
        intake, control = self.parts.intake, self.parts.control
        window = intake.window(purpose, numbers)
        missing = partial(intake.missing, purpose, numbers)
        with control.doing("waits", "waiting", missing, timed=phase):
            return await control.unless_interrupted(self.reconciler.beside(window))

    async def _end_replay(self) -> None:
        """The log lacks a group, which must be sampled again: by the policy as it is now."""
        message = (
            f"the log no longer has all groups of the steps from {self.step} to "
            f"{self.replay_until}; they are asked for again, and these steps are made anew"
        )
        await self.parts.reporter.say(f"anew:{self.attempt}", message, level="warn")
        self.replay_until = self.step
        await self._publish_if_current()

    def _samples_of(self, groups: Sequence[GradedGroup]) -> tuple[list[Sample], GroupFacts]:
        kept_kv = self.recipe.rollout.kv_after_sync == "keep"
        return samples_of(
            groups, self.scoring, attempt=self.attempt, version=self.step, kept_kv=kept_kv
        )

    async def _settle(
        self, purpose: Purpose, fates: Sequence[str], tokens: Mapping[str, np.ndarray]
    ) -> None:
        """Enter what became of the next groups into the ledger and the sample store."""
        ledger = self.progress.ledgers[purpose]
        first, step = ledger.position, self.progress.steps_of(purpose)
        ledger.enter(fates)
        groups = self.parts.intake.finish(purpose, range(first, ledger.position))
        for group in groups:
            if group.failure is not None:
                log.warning("dropped", extra={"key": group.key, "reason": group.failure})
        sampled = sampled_groups(
            groups, fates, self.scoring, tokens, attempt=self.attempt, step=step
        )
        with self.parts.control.doing("keeps samples", timed="keep_samples"):
            await self.parts.store.append(sampled)

    def _note_work(self, facts: GroupFacts) -> None:
        now = time.monotonic()
        self.progress.note_work(now - self.stopwatch, facts.responses, facts.tokens)
        self.stopwatch = now

    @property
    def step(self) -> int:
        """Training steps made; the number of the policy after them."""
        return self.progress.step

    @property
    def _replaying(self) -> bool:
        return self.step < self.replay_until

    @property
    def _evaluation_is_due(self) -> bool:
        place = evaluation_place(self.recipe, self.step)
        return place is not None and self.progress.evaluated <= place

    @property
    def _finished(self) -> bool:
        return self.step >= self.recipe.training.steps and not self._evaluation_is_due


def _whole(groups: Sequence[GradedGroup]) -> list[GradedGroup]:
    """The groups that have not failed."""
    return [group for group in groups if group.failure is None]
