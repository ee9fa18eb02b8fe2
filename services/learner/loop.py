"""The training loop: what the learner does with one job, from its last checkpoint to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.exchange import Exchange
from protocol.messages import GradedGroup, JobState, Requested
from protocol.recipe import Purpose, Recipe
from torch import Tensor

from services.learner.algorithms.advantages import GroupScores
from services.learner.checkpoint import Checkpoints, LearnerState
from services.learner.control import Control, PauseRequested
from services.learner.evaluation import Evaluator, evaluation_steps, summarize
from services.learner.feeder import Feeder, numbers_of
from services.learner.intake import Intake
from services.learner.ledger import Ledger
from services.learner.publish import Publisher
from services.learner.ranks import Team
from services.learner.report import SECONDS, Reporter, show_account
from services.learner.samples import GroupFacts, samples_of

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """What the loop works with, each the owner of one concern."""

    exchange: Exchange
    team: Team
    control: Control
    feeder: Feeder
    intake: Intake
    evaluator: Evaluator
    publisher: Publisher
    checkpoints: Checkpoints
    reporter: Reporter


@dataclass
class Learning:
    """One attempt at one job. ``step`` counts training steps, and names the policy after them."""

    job_id: str
    attempt: int
    recipe: Recipe
    parts: Parts
    advantage: Callable[[GroupScores], Tensor]
    replay_until: int  # steps that an earlier attempt has already made, and told of
    step: int = 0
    ledgers: dict[Purpose, Ledger] = field(default_factory=lambda: {p: Ledger(p) for p in Purpose})
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, float] = field(
        default_factory=lambda: (
            {"train_seconds": 0.0, "samples": 0.0, "tokens": 0.0}
            | {"parity_max": 0.0, "parity_tokens": 0.0}
        )
    )
    saved_step: int = -1
    state_changes: int = 0
    stopwatch: float = field(default_factory=time.monotonic)

    async def learn(self) -> None:
        """Go on from where the state says until all steps are made; pause and resume on request."""
        await self._publish_if_current()
        while not self._finished:
            try:
                await self._advance()
            except PauseRequested:
                await self._pause()

    async def _advance(self) -> None:
        """Evaluate if that is due, else train one step."""
        self.parts.control.obey()
        due = evaluation_steps(self.recipe)
        if self.step in due and len(self.evaluations) <= due.index(self.step):
            await self._evaluate()
        else:
            await self._train_step()

    async def _train_step(self) -> None:
        """Consumes one step's groups, in the order they were asked; produces the next policy."""
        began = time.monotonic()
        self.parts.feeder.admit(self.step)
        numbers = numbers_of(self.step, self.recipe.training.groups_per_step)
        groups = await self._groups(Purpose.TRAIN, numbers, "wait_for_groups")
        await self._pause_if_ungradable(groups)
        samples, facts = samples_of(
            groups,
            self.advantage,
            attempt=self.attempt,
            version=self.step,
            kept_kv=self.recipe.rollout.kv_after_sync == "keep",
        )
        assert facts.staleness_max <= self.recipe.training.max_staleness, "stale by construction"
        with timed("train"):
            metrics = await self.parts.team.train(samples)
        self.step += 1
        self._settle(Purpose.TRAIN, numbers)
        self.parts.feeder.admit(self.step)
        await self._publish_if_current()
        await self._report(groups, facts, metrics, time.monotonic() - began)
        if self.step % self.recipe.training.checkpoint_every == 0 and not self._replaying:
            await self.save_checkpoint()

    async def _evaluate(self) -> None:
        """Consumes the evaluation's groups; produces its result, and measures parity on them."""
        numbers = await self.parts.evaluator.ask(self.step, self.parts.intake)
        groups = await self._groups(Purpose.EVAL, numbers, "evaluate")
        await self._measure_parity(groups)
        result = summarize(self.step, groups)
        self.evaluations.append(result)
        self._settle(Purpose.EVAL, numbers)
        await self.parts.reporter.evaluation(result)
        self.stopwatch = time.monotonic()

    async def _measure_parity(self, groups: Sequence[GradedGroup]) -> None:
        """Evaluation responses were all sampled under this version: compare log-probs on them."""
        sampling = self.recipe.evaluation_sampling
        if sampling.top_p < 1 or not groups:
            return
        samples, _ = samples_of(
            groups, lambda scores: scores.outcome, attempt=self.attempt, version=self.step
        )
        self._note_parity(await self.parts.team.score(samples, sampling.temperature))

    async def _publish_if_current(self) -> None:
        """Publish, unless an earlier attempt's steps are being replayed: nobody waits for those."""
        if not self._replaying:
            with timed("publish"):
                await self.parts.publisher.publish(self.parts.team, self.step)

    async def _report(
        self,
        groups: Sequence[GradedGroup],
        facts: GroupFacts,
        metrics: dict[str, float],
        seconds: float,
    ) -> None:
        self._note_parity(metrics)
        self._note_totals(facts)
        data = {
            **facts.means(len(groups)),
            **metrics,
            "step": self.step,
            "samples": facts.responses,
            "tokens": facts.tokens,
            "seconds": seconds,
            "samples_per_second": facts.responses / seconds,
            "tokens_per_second": facts.tokens / seconds,
            "dropped_responses": dict(facts.dropped_responses),
            "groups": await self.account(Purpose.TRAIN),
        }
        await self.parts.reporter.step(self.step, data)
        if not self._replaying:
            await self.parts.exchange.update_job(self.job_id, self.attempt, step=self.step)

    async def account(self, purpose: Purpose) -> dict[str, Any]:
        """The ledger of a purpose at this moment: asked = trained + dropped + under way."""
        under_way = await self.parts.exchange.under_way(self.job_id)
        asked = (self.parts.feeder if purpose is Purpose.TRAIN else self.parts.evaluator).asked
        waiting = self.parts.intake.keys_waiting()
        account = self.ledgers[purpose].account(asked, under_way | waiting)
        show_account(purpose, account)
        return account

    async def save_checkpoint(self) -> None:
        """Make everything up to this step durable."""
        with timed("checkpoint"):
            await self.parts.intake.roll_log()
            await self.parts.checkpoints.save(self.parts.team, self._state(), self._commit)
        self.saved_step = self.step

    async def _commit(self) -> None:
        """The fence: a superseded attempt stops here, before its checkpoint counts."""
        await self.parts.exchange.update_job(
            self.job_id, self.attempt, attempts_since_checkpoint=0, error=None
        )

    async def restore(self, folder: Path, state: LearnerState) -> None:
        """Go on from a checkpoint."""
        await self.parts.team.load(folder)
        self.step = self.saved_step = state.step
        self.evaluations, self.totals = list(state.evaluations), dict(state.totals)
        for purpose, stored in state.ledgers.items():
            self.ledgers[purpose].restore(stored)

    def _state(self) -> LearnerState:
        return LearnerState(
            step=self.step,
            first_segment=self.parts.intake.first_segment_needed,
            ledgers={purpose: ledger.state() for purpose, ledger in self.ledgers.items()},
            evaluations=self.evaluations,
            totals=self.totals,
        )

    async def _pause(self) -> None:
        """Pause checkpoints first; the job goes on here when the user resumes it."""
        if self.saved_step != self.step and not self._replaying:
            await self.save_checkpoint()
        await self._set_state(JobState.PAUSED)
        await self.parts.control.until_resumed()
        await self._set_state(JobState.RUNNING)
        self.stopwatch = time.monotonic()

    async def _pause_if_ungradable(self, groups: Sequence[GradedGroup]) -> None:
        """Above ``reward.max_ungradable`` the user decides: PAPO must not silently become GRPO."""
        scores = [s for g in groups for grade in g.grades for s in (grade.outcome, grade.process)]
        asked = [score for score in scores if score is not None]
        share = sum(score.kind == "ungradable" for score in asked) / max(1, len(asked))
        if share <= self.recipe.reward.max_ungradable:
            return
        message = (
            f"paused: {share:.0%} of the scores of step {self.step} could not be graded, more than "
            f"reward.max_ungradable = {self.recipe.reward.max_ungradable:.0%}; mend the grader, "
            "then resume the job"
        )
        await self.parts.reporter.say(f"ungradable:{self.step}", message, level="warn")
        await self.parts.exchange.request_state(self.job_id, Requested.PAUSE)
        await self.parts.control.refresh()
        await self._pause()

    async def _set_state(self, state: JobState) -> None:
        await self.parts.exchange.update_job(self.job_id, self.attempt, state=state)
        self.state_changes += 1
        await self.parts.reporter.say(f"state:{self.attempt}:{self.state_changes}", state)

    async def _groups(self, purpose: Purpose, numbers: range, phase: str) -> list[GradedGroup]:
        """Wait for the groups with these numbers; without those that failed."""
        window = self.parts.intake.window(purpose, numbers)
        with timed(phase):
            groups = await self.parts.control.unless_interrupted(window)
        return [group for group in groups if group.failure is None]

    def _settle(self, purpose: Purpose, numbers: range) -> None:
        """Enter into the ledger what became of the groups with these numbers."""
        for group in self.parts.intake.finish(purpose, numbers):
            if group.failure is None:
                self.ledgers[purpose].train(1)
            else:
                log.warning("dropped", extra={"key": group.key, "reason": group.failure})
                self.ledgers[purpose].drop(group.failure.split(":")[0])

    def _note_parity(self, metrics: dict[str, float]) -> None:
        self.totals["parity_max"] = max(self.totals["parity_max"], metrics["parity_max"])
        self.totals["parity_tokens"] += metrics["parity_tokens"]

    def _note_totals(self, facts: GroupFacts) -> None:
        now = time.monotonic()
        self.totals["train_seconds"] += now - self.stopwatch
        self.totals["samples"] += facts.responses
        self.totals["tokens"] += facts.tokens
        self.stopwatch = now

    @property
    def _replaying(self) -> bool:
        return self.step < self.replay_until

    @property
    def _finished(self) -> bool:
        due = evaluation_steps(self.recipe)
        return self.step >= self.recipe.training.steps and len(self.evaluations) >= len(due)


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Count the time of a phase."""
    began = time.monotonic()
    try:
        yield
    finally:
        SECONDS.labels(phase).inc(time.monotonic() - began)
