"""A stand-in for the learner's ranks: its model is a digest of all that it was trained on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.recipe import Recipe

from services.learner.training.samples import Measured

if TYPE_CHECKING:  # which imports torch
    from services.learner.training.samples import Sample


class FakeTeam:
    """What `Team` does, without torch: two that were trained on the same hold the same digest."""

    num_ranks = 1
    device_name = ""
    adapts: Path | None = None

    def __init__(self) -> None:
        self.digest = ""
        self.copy = ""  # to be written
        self.is_kept_alive = False

    def turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def open(self, folder: Path, recipe: Recipe, critic_folder: Path | None = None) -> None:
        self.digest = ""

    async def rehearse(self, samples: Sequence[Sample]) -> None:
        pass

    async def train(self, samples: Sequence[Sample]) -> Measured:
        self._learn("train", samples)
        return Measured()

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        self._learn("pretrain", samples)
        return Measured()

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        return Measured()

    async def snapshot_weights(self) -> None:
        pass

    async def drop_snapshot(self) -> None:
        pass

    async def save(self, folder: Path) -> None:
        (folder / "policy").mkdir()
        self.copy = self.digest

    async def written(self, folder: Path) -> None:
        (folder / "policy" / "digest").write_text(self.copy)

    async def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        self.digest = (folder / "policy" / "digest").read_text()

    async def publish(self, folder: Path, slot: int) -> None:
        await self.export(folder)

    async def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_text(self.digest)

    async def export_critic(self, folder: Path) -> None:
        await self.export(folder)

    async def leave(self) -> None:
        pass

    async def keep_alive_forever(self) -> None:
        self.is_kept_alive = True
        await asyncio.Event().wait()

    def _learn(self, kind: str, samples: Sequence[Sample]) -> None:
        digest = hashlib.sha256(f"{self.digest} {kind}".encode())
        for sample in samples:
            digest.update(sample.token_ids.tobytes() + str(sample.advantage).encode())
        self.digest = digest.hexdigest()


class Stalling(FakeTeam):
    """A team that makes so many steps, and never ends the next one."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps
        self.stalls = asyncio.Event()

    async def train(self, samples: Sequence[Sample]) -> Measured:
        if self.left == 0:
            self.stalls.set()
            await asyncio.Event().wait()
        self.left -= 1
        return await super().train(samples)
