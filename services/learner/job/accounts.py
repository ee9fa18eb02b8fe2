"""Accounts: what became of every group, in the ledgers and in the sample store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol.recipe import Purpose

from services.learner.attempt import Attempt
from services.learner.durable.progress import Progress
from services.learner.durable.sample_facts import sampled_groups
from services.learner.durable.sample_store import SampleStore
from services.learner.job.control import Control
from services.learner.job.reconciler import Asker
from services.learner.supply.intake import Intake
from services.learner.supply.selection import SURPLUS
from services.learner.training.scoring import Scoring

log = logging.getLogger(__name__)


@dataclass
class Accounts:
    """The accounts of one attempt."""

    attempt: Attempt
    progress: Progress
    control: Control
    intake: Intake
    askers: Mapping[Purpose, Asker]
    store: SampleStore
    scoring: Scoring

    async def settle(
        self, purpose: Purpose, fates: Sequence[str], tokens: Mapping[str, np.ndarray]
    ) -> None:
        """Enter what became of the next groups into the ledger and the sample store.

        Args:
            fates: `USED`, or why each is dropped.
            tokens: what was measured for each token of those that are used, in their order.
        """
        ledger = self.progress.ledgers[purpose]
        first, step = ledger.position, self.progress.steps_of(purpose)
        ledger.enter(fates)
        groups = self.intake.finish(purpose, range(first, ledger.position))
        for group in groups:
            if group.failure is not None:
                log.warning("dropped", extra={"key": group.key, "reason": group.failure})
        number = self.attempt.number
        sampled = sampled_groups(groups, fates, self.scoring, tokens, attempt=number, step=step)
        with self.control.doing("keeps samples", timed="keep_samples"):
            await self.store.append(sampled)

    async def of(self, purpose: Purpose) -> dict[str, Any]:
        """The ledger of a purpose at this moment: asked = trained + dropped + under way."""
        under_way = await self.attempt.exchange.under_way(self.attempt.job_id)
        there = under_way | self.intake.keys_waiting()
        return self.progress.ledgers[purpose].account(self.askers[purpose].asked, there)

    def drop_leftovers(self) -> None:
        """All steps are made: what was asked for beyond them serves nobody."""
        ledger = self.progress.ledgers[Purpose.TRAIN]
        ledger.drop(SURPLUS, self.askers[Purpose.TRAIN].asked - ledger.position)
