"""The team that stands in for the models: its policy is a hash of all that it has learned."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from services.learner.training.samples import Measured
from tests.chaos.job import BASE_MODEL
from tests.chaos.places import Switches
from tests.contract.fake_team import FakeTeam

if TYPE_CHECKING:  # which imports torch
    from services.learner.training.samples import Sample

_WEIGHTS = "model.safetensors"
_PACE_S = 0.5
_WRITE_S = 0.02
_SAVE_S = 0.3
PHASES = ("evaluation", "checkpoint", "slot")  # beside the steps


class HashTeam(FakeTeam):
    """A team whose model is the hash of everything that it was trained on, in order.

    While the switch "pace" is on, a step takes a while, so that a job outlasts its faults. Then a
    switch is on for each of `PHASES` that is under way, or was when the learner was killed.
    """

    def __init__(self, switches: Switches) -> None:
        super().__init__()
        self.switches = switches
        for phase in PHASES:
            switches.release(phase)

    async def train(self, samples: Sequence[Sample]) -> Measured:
        await self._pace(_PACE_S)
        self._learn("train", samples)
        return Measured({"loss": 0.1})

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        await self._pace(_PACE_S)
        self._learn("pretrain", samples)
        return Measured({"explained_variance": int(self.digest[:2], 16) / 255})

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        return Measured({"parity_max": 0.0, "parity_tokens": 1.0})

    async def snapshot_weights(self) -> None:
        self._begins("evaluation")

    async def drop_snapshot(self) -> None:
        self.switches.release("evaluation")

    async def written(self, folder: Path) -> None:
        with self._during("checkpoint"):
            await self._write(folder / "policy" / "digest", self.copy.encode(), _SAVE_S)

    async def publish(self, folder: Path, slot: int) -> None:
        """Write over the old content, in two halves: a kill in between leaves a torn slot."""
        with self._during("slot"):
            await self.export(folder)
            await self._write(folder / _WEIGHTS, (folder / _WEIGHTS).read_bytes(), _WRITE_S)

    async def export(self, folder: Path) -> None:
        await asyncio.to_thread(_export, self.digest, folder)

    def _learn(self, kind: str, samples: Sequence[Sample]) -> Measured:
        digest = hashlib.sha256(f"{self.digest} {kind}".encode())
        for sample in samples:
            for array in (sample.prompt_ids, sample.token_ids, sample.behavior_logprobs):
                digest.update(array.tobytes())
            numbers = (sample.advantage, sample.reward, sample.correct, sample.group)
            digest.update(struct.pack("<dd?i", *numbers))
        self.digest = digest.hexdigest()
        return Measured()

    async def _write(self, path: Path, content: bytes, seconds: float) -> None:
        path.write_bytes(content[: len(content) // 2])
        await self._pace(seconds)
        path.write_bytes(content)

    async def _pace(self, seconds: float) -> None:
        if self.switches.is_enabled("pace"):
            await asyncio.sleep(seconds)

    @contextmanager
    def _during(self, phase: str) -> Iterator[None]:
        self._begins(phase)
        yield
        self.switches.release(phase)

    def _begins(self, phase: str) -> None:
        if self.switches.is_enabled("pace"):
            self.switches.throw(phase)


def exported_hash(folder: Path) -> str:
    """The hash in a folder that the team has exported."""
    return (folder / _WEIGHTS).read_bytes()[-32:].hex()


def _export(digest: str, folder: Path) -> None:
    """A model folder that a rollout accepts, with one tensor: the hash."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes((BASE_MODEL / "config.json").read_bytes())
    header = json.dumps(
        {
            "hash": {
                "dtype": "U8",
                "shape": [32],
                "data_offsets": [0, 32],
            }
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    tensor = hashlib.sha256(digest.encode()).digest()
    (folder / _WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + tensor)
