"""What stands in for the models: a policy that is a hash, answers that only the request decides.

Everything around them is the product: what they learn therefore depends on nothing but the recipe,
unless a fault of a machine has changed, lost, repeated or swapped something.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from protocol.messages import (
    FinishReason,
    Grade,
    Graded,
    GradedGroup,
    Response,
    RolloutGroup,
    RolloutRequest,
    VersionSpan,
)
from protocol.recipe import Purpose, Recipe

from services.learner.ranks import Team
from services.learner.samples import Sample
from tests.chaos.recipe import BASE_MODEL, WEIGHTS
from tests.chaos.switches import Switches

_STATE = "hash"
_PACE_S = 0.35


def group_for(request: RolloutRequest) -> RolloutGroup:
    """The answer to a request; its seed decides all of it.

    The spans name the step that the request was asked for, whichever version is loaded: a group
    that came late would be dropped as surplus, and then the rest would depend on the time.
    """
    chance = random.Random(request.seed)
    lengths = [chance.randint(1, 12) for _ in range(request.group_size)]
    return RolloutGroup(
        request=request,
        prompt_ids=np.array([chance.randrange(1000) for _ in range(3)]),
        token_ids=np.array([chance.randrange(1000) for _ in range(sum(lengths))]),
        behavior_logprobs=np.array([-chance.random() for _ in range(sum(lengths))]),
        lengths=np.array(lengths),
        responses=tuple(_response(request, length, chance) for length in lengths),
        sampling_seconds=0.0,
    )


def graded(group: RolloutGroup) -> GradedGroup:
    """The grades of a group; two in seven training groups have nothing to teach."""
    request = group.request
    chance = random.Random(-request.seed)
    outcomes = [float(index % 2) for index in range(request.group_size)]
    chance.shuffle(outcomes)
    if request.purpose is Purpose.TRAIN and request.number % 7 in {2, 5}:
        outcomes = [0.0] * request.group_size
    return GradedGroup(
        purpose=request.purpose,
        number=request.number,
        group=group,
        grades=tuple(
            Grade(
                outcome=Graded(value=outcome),
                process=Graded(value=round(chance.random(), 3)) if outcome else None,
            )
            for outcome in outcomes
        ),
    )


def _response(request: RolloutRequest, length: int, chance: random.Random) -> Response:
    span = VersionSpan(attempt=request.attempt, version=request.step, start=0, end=length)
    return Response(
        text=f"{request.key} {chance.randrange(1000)}",
        finish_reason=FinishReason.STOP,
        spans=(span,),
    )


class HashTeam(Team):
    """A team whose model is the hash of everything that it was trained on, in order.

    While the switch "pace" is on, a step takes a while, so that a job outlasts its disturbances.
    """

    def __init__(self, switches: Switches | None = None) -> None:
        self.switches = switches
        self.state = b""

    async def open(self, folder: Path, recipe: Recipe, critic_folder: Path | None = None) -> None:
        self.state = b"base"

    async def train(self, samples: Sequence[Sample]) -> dict[str, float]:
        await self._learn(b"train", samples)
        return {"loss": 0.1}

    async def pretrain(self, samples: Sequence[Sample]) -> dict[str, float]:
        await self._learn(b"pretrain", samples)
        return {"value_loss": 0.1}

    async def score(self, samples: Sequence[Sample], temperature: float) -> dict[str, float]:
        return {"parity_max": 0.0, "parity_tokens": 1.0}

    async def save(self, folder: Path) -> None:
        (folder / _STATE).write_bytes(self.state)

    async def load(self, folder: Path) -> None:
        self.state = (folder / _STATE).read_bytes()

    async def export(self, folder: Path) -> None:
        await asyncio.to_thread(_export, self.state, folder)

    async def export_critic(self, folder: Path) -> None:
        await asyncio.to_thread(_export, self.state, folder)

    async def leave(self) -> None:
        pass

    async def keep_alive_forever(self) -> None:
        await asyncio.Event().wait()

    async def _learn(self, what: bytes, samples: Sequence[Sample]) -> None:
        if self.switches is not None and self.switches.is_on("pace"):
            await asyncio.sleep(_PACE_S)
        digest = hashlib.sha256(self.state + what)
        for sample in samples:
            for array in (sample.prompt_ids, sample.token_ids, sample.behavior_logprobs):
                digest.update(array.tobytes())
            numbers = (sample.advantage, sample.reward, sample.correct, sample.group)
            digest.update(struct.pack("<dd?i", *numbers))
        self.state = digest.hexdigest().encode()


def _export(state: bytes, folder: Path) -> None:
    """A model folder that a rollout accepts, with one tensor: the hash."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes((BASE_MODEL / "config.json").read_bytes())
    tensor = hashlib.sha256(state).digest()
    entry = {"hash": {"dtype": "U8", "shape": [len(tensor)], "data_offsets": [0, len(tensor)]}}
    header = json.dumps(entry).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + tensor)


@dataclass
class HashEngine:
    """The engine of a rollout; loading takes a while when the switch says so."""

    switches: Switches
    seat: str
    has_died: bool = False

    async def load(self, folder: Path, label: str, *, keep_kv: bool) -> dict[str, float]:
        if self.switches.is_on("slow_load", self.seat):
            await asyncio.sleep(1.0)
        return {"load": 0.0}

    def shut_down(self) -> None:
        pass
