"""A stand-in for the learner's ranks: its model is a digest of all that it was trained on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.recipe import Recipe

from services.learner.training.samples import Measured

if TYPE_CHECKING:  # which imports torch
    from services.learner.training.samples import Sample


@dataclass
class FakeTeam:
    """What `Team` does, without torch: two that were trained on the same hold the same digest."""

    num_ranks = 1
    device_name = ""
    adapts: Path | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    digest: str = field(default="", init=False)
    copy: str = field(default="", init=False)  # to be written
    is_kept_alive: bool = field(default=False, init=False)

    async def before_step(self) -> None:
        """For what a test does when so many ``steps`` are made."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def open(
        self,
        folder: Path,
        recipe: Recipe,
        critic_folder: Path | None = None,
    ) -> None:
        self.digest = ""

    async def train(self, samples: Sequence[Sample]) -> Measured:
        await self.before_step()
        self.steps += 1
        return self._learn("train", samples)

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        return self._learn("pretrain", samples)

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        return Measured()

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

    async def keep_alive_forever(self) -> None:
        self.is_kept_alive = True
        await asyncio.Event().wait()

    async def leave(self, *_: object) -> None:
        pass

    rehearse = snapshot_weights = drop_snapshot = leave

    def _learn(self, kind: str, samples: Sequence[Sample]) -> Measured:
        digest = hashlib.sha256(f"{self.digest} {kind}".encode())
        for sample in samples:
            digest.update(sample.token_ids.tobytes() + str(sample.advantage).encode())
        self.digest = digest.hexdigest()
        return Measured()


@dataclass
class Stalling(FakeTeam):
    """A team that makes so many steps, and never ends the next one."""

    after: int
    stalls: asyncio.Event = field(default_factory=asyncio.Event)

    async def before_step(self) -> None:
        if self.steps == self.after:
            self.stalls.set()
            await asyncio.Event().wait()
