"""The ledger: every group that was asked for is trained, dropped for a reason, or under way."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from protocol.recipe import Purpose

from services.learner.samples import merged


@dataclass
class Ledger:
    """What became of the groups of one purpose. An evaluation group counts as trained when used."""

    purpose: Purpose
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def train(self, count: int) -> None:
        """So many groups were used."""
        self.trained += count

    def drop(self, reason: str, count: int = 1) -> None:
        """So many groups were given up; the reason is short, and the same for the same cause."""
        self.dropped = merged(self.dropped, {reason: count})

    def account(self, asked: int, under_way: Set[str]) -> dict[str, Any]:
        """The account at this moment.

        Args:
            asked: how many numbers were given out.
            under_way: keys of groups in the exchange or waiting in the learner, of any purpose.
        """
        mine = sum(key.startswith(f"{self.purpose}:") for key in under_way)
        return {
            "asked": asked,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "under_way": mine,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"trained": self.trained, "dropped": self.dropped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trained, self.dropped = state["trained"], dict(state["dropped"])
