"""Learning: a job continues, phase by phase, from its last checkpoint to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from protocol.messages import Doing, FailureKind, GradedGroup
from protocol.recipe import Purpose, Recipe
from protocol.streams import requests_for

from services.chassis.metrics import PHASES
from services.chassis.renderer import PromptRenderer
from services.learner.attempt import Attempt, JobFault
from services.learner.durable.progress import Progress
from services.learner.durable.sample_rows import rows_of
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
    """One kind of work: evaluation, the critic's pretraining, or training."""

    @property
    def is_due(self) -> bool:
        """Whether it comes next, unless a phase before it is due."""
        ...

    async def advance(self) -> None: ...


@dataclass
class Learning:
    """One attempt at one job: what its phases share."""

    attempt: Attempt
    progress: Progress
    team: Team
    control: Control
    prompts: PromptRenderer
    intake: Intake
    reconciler: Reconciler
    versions: Versions
    scoring: Scoring
    held: int | None = None  # the version whose weights the ranks have copied
    _lap_began: float = field(default_factory=time.monotonic)
    _phases_before: dict[str, float] = field(default_factory=PHASES.seconds)

    @property
    def parity(self) -> Parity:
        return self.versions.parity

    @property
    def recipe(self) -> Recipe:
        return self.attempt.recipe

    async def learn(self, phases: Sequence[Phase]) -> None:
        """Advance the first phase that is due until none is.

        Raises:
            PauseRequested: if the user wants that, or has to decide.
            JobFault: if no step has changed the policy.
        """
        await self.control.refresh()
        if self.recipe.client is None:
            await self.versions.publish()
        while due := next((phase for phase in phases if phase.is_due), None):
            self.control.obey()
            await due.advance()
        why = self.progress.why_nothing_was_learned()
        if why and self.recipe.client is None:
            raise JobFault(why)

    async def groups(
        self, purpose: Purpose, numbers: range, phase: str = "wait_for_groups"
    ) -> list[GradedGroup]:
        """Wait for the groups with these numbers; the time counts as the phase's."""
        intake, control = self.intake, self.control
        is_replayed = self.progress.is_replayed and purpose is not Purpose.EVAL
        if is_replayed and len(intake.have(purpose, numbers)) < len(numbers):
            await self._end_replay()
        window = intake.window(purpose, numbers)
        missing = partial(intake.missing, purpose, numbers)
        with control.doing(Doing.WAITS_FOR_GROUPS, waits_for=missing, timed=phase):
            return await control.unless_interrupted(self.reconciler.reconciling_until(window))

    async def settle(
        self, purpose: Purpose, groups: Sequence[ScoredGroup], tokens: Mapping[str, np.ndarray]
    ) -> None:
        """Enter what became of the next groups into the ledger and the sample store.

        Args:
            purpose: of the groups.
            groups: with their fates, in the order of their numbers.
            tokens: what was measured for each token of the samples, in their order.
        """
        ledger = self.progress.ledgers[purpose]
        first, step = ledger.position, self.progress.steps_of(purpose)
        ledger.enter([group.fate for group in groups])
        self.intake.finish(purpose, range(first, ledger.position))
        for graded in (group.graded for group in groups):
            if graded.failure is not None:
                log.warning("dropped", extra={"key": graded.key, "reason": str(graded.failure)})
                if graded.failure.kind is FailureKind.UNWORKABLE:
                    message = f"a group is left out, {graded.failure}"
                    await self.attempt.say("unworkable", message, level="warn")
        if groups:
            with self.control.doing(Doing.KEEPS_SAMPLES, timed="keep_samples"):
                await self.versions.store.append(purpose, step, partial(rows_of, groups, tokens))

    async def account_of(self, purpose: Purpose) -> dict[str, Any]:
        """The ledger of a purpose at this moment: asked = trained + dropped + under way."""
        asked = self._asked(purpose)  # looked up first: the feeder asks on meanwhile
        under_way = await self.attempt.exchange.under_way(self.attempt.job_id)
        there = under_way | self.intake.keys_waiting()
        return self.progress.ledgers[purpose].account(purpose, asked, there)

    async def drop_ahead(self, feeder: Feeder) -> None:
        """Its steps are over before their time: what is asked for beyond them is surplus."""
        purpose, exchange, attempt = feeder.purpose, self.attempt.exchange, self.attempt
        asked, ledger = await feeder.stop(), self.progress.ledgers[feeder.purpose]
        under_way = await exchange.under_way(attempt.job_id)
        kept = [key for key in under_way if not key.startswith(f"{purpose}:")]
        stream = requests_for(purpose, self.recipe.environment is not None)
        await exchange.withdraw(stream, attempt.job_id, attempt.number, kept)
        self.intake.finish(purpose, range(ledger.position, asked))
        ledger.drop(SURPLUS, asked - ledger.position)

    def drop_leftovers(self) -> None:
        """All steps are made: what was asked for beyond them is surplus."""
        ledger = self.progress.ledgers[Purpose.TRAIN]
        ledger.drop(SURPLUS, self._asked(Purpose.TRAIN) - ledger.position)

    def _asked(self, purpose: Purpose) -> int:
        return self.reconciler.askers[purpose].next_number

    async def snapshot_weights(self) -> None:
        """Keep a copy of the weights as they are, with which tokens can be compared later."""
        await self.team.snapshot_weights()
        self.held = self.progress.step

    async def drop_snapshot(self) -> None:
        if self.held is not None:
            await self.team.drop_snapshot()
            self.held = None

    def lap(self) -> float:
        before, self._lap_began = self._lap_began, time.monotonic()
        return self._lap_began - before

    def phase_seconds(self) -> dict[str, float]:
        """The seconds of each phase since this was called last, of those that had any."""
        before, self._phases_before = self._phases_before, PHASES.seconds()
        spent = {name: s - before.get(name, 0.0) for name, s in self._phases_before.items()}
        return {name: seconds for name, seconds in spent.items() if seconds > 0}

    async def _end_replay(self) -> None:
        """The log lacks a group, which must be sampled again: by the policy as it is now."""
        step, made = self.progress.step, self.progress.made_before
        message = (
            f"the log no longer has all groups of the steps from {step} to {made}; they are asked "
            "for again, and these steps are made again"
        )
        await self.attempt.say(f"anew:{self.attempt.number}", message, level="warn")
        self.progress.made_before = step
        await self.versions.publish()
