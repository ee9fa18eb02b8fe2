"""Learning: a job advances phase by phase, from its last checkpoint to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from protocol.bill import make_bill
from protocol.messages import Doing, FailureKind, GradedGroup
from protocol.recipe import Purpose, Recipe
from protocol.streams import request_stream

from services.chassis.metrics import PHASES
from services.chassis.renderer import PromptRenderer
from services.learner.attempt import Attempt, JobFault
from services.learner.durable.progress import Progress
from services.learner.durable.sample_rows import build_rows
from services.learner.job.control import Control
from services.learner.job.parity import Parity
from services.learner.job.reconciler import Reconciler
from services.learner.job.versions import Versions
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.supply.selection import SURPLUS
from services.learner.training.ranks import Team
from services.learner.training.scoring import ScoredGroup, Scoring

log = logging.getLogger(__name__)


class Phase(Protocol):
    """One kind of work: evaluation, pretraining of the critic, training, or a session."""

    @property
    def is_due(self) -> bool:
        """Whether it comes next, unless an earlier phase is due."""
        ...

    async def advance(self) -> None: ...


@dataclass
class Learning:
    """The parts of one attempt that its phases share."""

    attempt: Attempt
    progress: Progress
    team: Team
    control: Control
    prompts: PromptRenderer
    intake: Intake
    reconciler: Reconciler
    versions: Versions
    scoring: Scoring
    snapshot_version: int | None = None  # the version of the weights that the ranks have copied
    _lap_began: float = field(default_factory=time.monotonic)
    _seconds_before: dict[str, float] = field(default_factory=PHASES.seconds)

    @property
    def parity(self) -> Parity:
        return self.versions.parity

    @property
    def recipe(self) -> Recipe:
        return self.attempt.recipe

    async def learn(self, phases: Sequence[Phase]) -> None:
        """Advance the first phase that is due until none is.

        Raises:
            PauseRequested: if the user pauses the job, or has to decide.
            JobFault: if no step has changed the policy.
        """
        await self.control.refresh()
        if self.recipe.client is None:
            await self.versions.publish()
        while due := next((phase for phase in phases if phase.is_due), None):
            self.control.obey()
            await due.advance()
        failure = self.progress.learning_failure()
        if failure and self.recipe.client is None and not self.recipe.only_evaluates:
            raise JobFault(failure)

    async def receive_groups(
        self, purpose: Purpose, numbers: range, phase: str = "wait_for_groups"
    ) -> list[GradedGroup]:
        """Wait for the groups with these numbers; the time counts for the phase."""
        intake = self.intake
        is_replayed = self.progress.is_replayed and purpose is not Purpose.EVAL
        if is_replayed and len(intake.have(purpose, numbers)) < len(numbers):
            await self._end_replay()
        window = intake.window(purpose, numbers)
        missing = partial(intake.missing, purpose, numbers)
        with self.control.during(Doing.WAITS_FOR_GROUPS, waits_for=missing, timed=phase):
            return await self.control.wait_interruptibly(self.reconciler.reconcile_until(window))

    async def settle(
        self, purpose: Purpose, groups: Sequence[ScoredGroup], tokens: Mapping[str, np.ndarray]
    ) -> None:
        """Enter the fates of the next groups into the ledger and the sample store.

        Args:
            purpose: of the groups.
            groups: with their fates, in the order of their numbers.
            tokens: measurements for each token of the samples, in their order.
        """
        ledger = self.progress.ledgers[purpose]
        first = ledger.position
        step = self.progress.completed_steps(purpose)
        ledger.enter([group.fate for group in groups])
        self.intake.finish(purpose, range(first, ledger.position))
        for group in groups:
            ledger.tokens.update(group.count_tokens())
            graded = group.graded
            if graded.failure is None:
                continue
            log.warning("dropped", extra={"key": graded.key, "reason": str(graded.failure)})
            if graded.failure.kind is FailureKind.UNWORKABLE:
                message = f"a group is left out, {graded.failure}"
                await self.attempt.warn("unworkable", message)
        if groups:
            with self.control.during(Doing.KEEPS_SAMPLES, timed="keep_samples"):
                rows = partial(build_rows, groups, tokens)
                await self.versions.store.append(purpose, step, rows)

    async def group_account(self, purpose: Purpose) -> dict[str, Any]:
        """Return the ledger of a purpose now: asked = trained + dropped + under way."""
        # Look this up first: the feeder sends requests meanwhile.
        requested = self._num_requested(purpose)
        under_way = await self.attempt.exchange.pending_keys(self.attempt.job_id)
        open_keys = under_way | self.intake.keys_waiting()
        return self.progress.ledgers[purpose].account(purpose, requested, open_keys)

    async def withdraw_surplus(self, feeder: Feeder) -> None:
        """Withdraw the requests for steps that are not needed, and drop their groups."""
        purpose = feeder.purpose
        exchange = self.attempt.exchange
        ledger = self.progress.ledgers[purpose]
        requested = await feeder.stop()
        under_way = await exchange.pending_keys(self.attempt.job_id)
        other_keys = [key for key in under_way if not key.startswith(f"{purpose}:")]
        stream = request_stream(purpose, self.recipe.environment is not None)
        await exchange.withdraw(stream, self.attempt.job_id, self.attempt.number, other_keys)
        numbers = range(ledger.position, requested)
        self._drop(purpose, numbers)
        self.intake.finish(purpose, numbers)

    def drop_surplus(self) -> None:
        """Drop the requested groups that no training step needs."""
        first = self.progress.ledgers[Purpose.TRAIN].position
        self._drop(Purpose.TRAIN, range(first, self._num_requested(Purpose.TRAIN)))

    def _drop(self, purpose: Purpose, numbers: range) -> None:
        ledger = self.progress.ledgers[purpose]
        for number in numbers:
            group = self.intake.waiting.get((purpose, number))
            if group is not None:
                ledger.tokens.update(ScoredGroup(group, self.scoring, SURPLUS).count_tokens())
        ledger.drop(SURPLUS, len(numbers))

    async def make_bill(self) -> dict[str, Any]:
        """Return the job's bill until now, with the tokens of its ledgers."""
        exchange = self.attempt.exchange
        job_id = self.attempt.job_id
        ledgers = self.progress.ledgers.items()
        tokens = {
            f"{purpose}/{n}": c for purpose, ledger in ledgers for n, c in ledger.tokens.items()
        }
        await exchange.set_tokens(job_id, tokens)
        return make_bill(await exchange.cost(job_id), self.recipe.machine)

    def _num_requested(self, purpose: Purpose) -> int:
        return self.reconciler.requesters[purpose].next_number

    async def snapshot_weights(self) -> None:
        """Copy the current weights, to compare tokens with them later."""
        await self.team.snapshot_weights()
        self.snapshot_version = self.progress.step

    async def drop_snapshot(self) -> None:
        if self.snapshot_version is not None:
            await self.team.drop_snapshot()
            self.snapshot_version = None

    def lap(self) -> float:
        """Return the seconds since the last call."""
        began = self._lap_began
        self._lap_began = time.monotonic()
        return self._lap_began - began

    def phase_seconds(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call; phases without any are left out."""
        before = self._seconds_before
        self._seconds_before = PHASES.seconds()
        spent = {name: s - before.get(name, 0.0) for name, s in self._seconds_before.items()}
        return {name: seconds for name, seconds in spent.items() if seconds > 0}

    async def _end_replay(self) -> None:
        """Make the remaining steps again: the current policy samples the groups the log lacks."""
        step = self.progress.step
        message = (
            f"the log lacks groups of the steps from {step} to {self.progress.steps_reported}; "
            "they are requested again, and these steps are made again"
        )
        await self.attempt.warn(f"anew:{self.attempt.number}", message)
        self.progress.steps_reported = step
        await self.versions.publish()
