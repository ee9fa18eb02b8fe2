"""Accounts: what became of every group, in the ledgers and in the sample store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from protocol.recipe import Purpose

from services.learner.job.learning import Learning
from services.learner.supply.selection import SURPLUS
from services.learner.training.scoring import ScoredGroup

log = logging.getLogger(__name__)


async def settle(
    learning: Learning,
    purpose: Purpose,
    groups: Sequence[ScoredGroup],
    tokens: Mapping[str, np.ndarray],
) -> None:
    """Enter what became of the next groups into the ledger and the sample store.

    Args:
        learning: what they were for.
        purpose: of the groups.
        groups: with their fates, in the order of their numbers.
        tokens: what was measured for each token of the samples, in their order.
    """
    ledger = learning.progress.ledgers[purpose]
    first, step = ledger.position, learning.progress.steps_of(purpose)
    ledger.enter([group.fate for group in groups])
    learning.intake.finish(purpose, range(first, ledger.position))
    for graded in (group.graded for group in groups):
        if graded.failure is not None:
            log.warning("dropped", extra={"key": graded.key, "reason": graded.failure})
    with learning.control.doing("keeps samples", timed="keep_samples"):
        await learning.versions.store.append(purpose, step, groups, tokens)


async def account_of(learning: Learning, purpose: Purpose) -> dict[str, Any]:
    """The ledger of a purpose at this moment: asked = trained + dropped + under way."""
    attempt, asked = learning.attempt, learning.reconciler.askers[purpose].asked
    under_way = await attempt.exchange.under_way(attempt.job_id)
    there = under_way | learning.intake.keys_waiting()
    return learning.progress.ledgers[purpose].account(asked, there)


def drop_leftovers(learning: Learning) -> None:
    """All steps are made: what was asked for beyond them serves nobody."""
    ledger = learning.progress.ledgers[Purpose.TRAIN]
    ledger.drop(SURPLUS, learning.reconciler.askers[Purpose.TRAIN].asked - ledger.position)
