"""The ledger: every group that was asked for is trained, dropped for a reason, or under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import group_key
from protocol.recipe import Purpose
from protocol.samples import USED

from services.learner.training.samples import merged


@dataclass
class Ledger:
    """What became of the groups of one purpose, entered in the order of their numbers.

    An evaluation or pretraining group counts as trained when it is used.
    """

    purpose: Purpose
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The number of the first group whose fate is open."""
        return self.trained + sum(self.dropped.values())

    def enter(self, fates: Sequence[str]) -> None:
        """What became of the next groups: `USED`, or why they were dropped."""
        self.train(fates.count(USED))
        for fate in fates:
            if fate != USED:
                self.drop(fate)

    def train(self, count: int) -> None:
        """So many groups were used."""
        self.trained += count

    def drop(self, reason: str, count: int = 1) -> None:
        """So many groups were given up; the reason is short, and the same for the same cause."""
        self.dropped = merged(self.dropped, {reason: count})

    def account(self, asked: int, there: Set[str]) -> dict[str, Any]:
        """The account at this moment: asked = trained + dropped + under way.

        Args:
            asked: how many numbers had been given out before ``there`` was looked up.
            there: keys of groups in the exchange or waiting in the learner, of any purpose.
        """
        open_numbers = range(self.position, asked)
        return {
            "asked": asked,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "under_way": sum(group_key(self.purpose, n) in there for n in open_numbers),
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"trained": self.trained, "dropped": self.dropped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trained, self.dropped = state["trained"], dict(state["dropped"])


def in_words(reasons: Mapping[str, int]) -> str:
    """How many were lost by reason."""
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
