"""The ledger: every group that was asked for is trained, dropped for a reason, or under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import group_key
from protocol.recipe import Purpose
from protocol.samples import USED


@dataclass
class Ledger:
    """What became of the groups of one purpose, entered in the order of their numbers.

    An evaluation or pretraining group counts as trained when it is used.
    """

    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason

    @property
    def position(self) -> int:
        """The number of the first group whose fate is open."""
        return self.trained + sum(self.dropped.values())

    def enter(self, fates: Sequence[str]) -> None:
        """What became of the next groups: `USED`, or why they were dropped."""
        for fate in fates:
            if fate == USED:
                self.trained += 1
            else:
                self.drop(fate)

    def drop(self, reason: str, count: int = 1) -> None:
        if count > 0:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def account(self, purpose: Purpose, asked: int, there: Set[str]) -> dict[str, Any]:
        """The account at this moment: asked = trained + dropped + under way.

        Args:
            purpose: of the groups.
            asked: how many numbers had been given out before ``there`` was looked up.
            there: keys of groups in the exchange or waiting in the learner, of any purpose.
        """
        open_numbers = range(self.position, asked)
        return {
            "asked": asked,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "under_way": sum(group_key(purpose, n) in there for n in open_numbers),
        }


def in_words(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
