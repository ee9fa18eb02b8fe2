"""A stored model in the place of the ranks, for a job that only evaluates."""

from __future__ import annotations

import asyncio
from pathlib import Path

from protocol import weights

from services.learner.training.ranks import Order, Team
from services.learner.training.samples import Measured


class StoredModel(Team):
    """Publishes the model of a folder unchanged; no rank loads it.

    Args:
        folder: of the model, or of an adapter.
        base: the folder of the adapter's base model.
    """

    def __init__(self, folder: Path, base: Path | None) -> None:
        self.folder = folder
        self.adapts = base
        self.num_ranks = 1
        self.device_name = ""
        self._turns = None
        self._turn = None

    async def publish(self, folder: Path, slot: int) -> None:
        await asyncio.to_thread(weights.copy, self.folder, folder, follow_links=True)

    async def written(self, folder: Path) -> None:
        """Return at once: a checkpoint holds no weights."""

    async def _give(self, order: Order) -> Measured:
        return Measured()
