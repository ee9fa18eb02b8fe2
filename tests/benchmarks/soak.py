"""What grows when a job goes on and on: ``python -m tests.benchmarks.soak --steps 100000``.

The learner, a rollout and a grader, the product's own, work in this process as fast as they can,
with a real server; `tests.chaos` has what stands in for the models. A table tells what they need of
memory and disk as the steps go by. In the end nothing may have grown: what is needed in the second
half of the steps is what was needed in the first. TMPDIR on a disk in memory makes it faster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from protocol.exchange import Exchange, connect
from protocol.messages import JobRecord
from protocol.streams import WORK_STREAMS

from services.chassis.service import Service
from services.learner.job import work_on_one_job
from tests.chaos.hash_team import HashTeam
from tests.chaos.recipe import a_chaos_recipe, write_tasks
from tests.chaos.seats import GRADER_SEATS, LEARNER, ROLLOUT_SEATS, Place, Seat
from tests.chaos.stack import JOB
from tests.chaos.worker_seats import grade, sample
from tests.contract.valkey_server import Server

ROWS = 20
GROWTH = 1.05  # of the second half over the first
KEPT_SAMPLES = 2 * 2**20
_MIB = 2**20


@dataclass(frozen=True)
class Needs:
    """What the stack needs at a moment; sizes in MiB, but for state.json in KiB."""

    step: int
    steps_per_s: float
    redis: float
    in_streams: float  # entries of the work streams
    log: float
    checkpoints: float
    weights: float
    state_json: float
    memory: float  # of this process

    def __str__(self) -> str:
        return "".join(f"{value:12.1f}" for value in astuple(self))

    @staticmethod
    def head() -> str:
        return "".join(f"{part.name:>12}" for part in fields(Needs))


async def soak(folder: Path, steps: int) -> AsyncIterator[Needs]:
    """Let a job make so many steps; yields what the stack needs, as they go by."""
    write_tasks(folder / "data" / "files")
    async with AsyncExitStack() as opened:
        server = opened.enter_context(Server(folder))
        with server.client() as client:
            client.config_set("appendfsync", "no")  # nothing is killed here
        user = await opened.enter_async_context(connect(server.url, me="user"))
        recipe = a_chaos_recipe(steps=steps, evaluate_every=100, checkpoint_every=20)
        await user.submit(JobRecord(id=JOB, created_at=time.time(), recipe=recipe))
        workers = [await opened.enter_async_context(_service(s, server, folder)) for s in _SEATS]
        ...


def main() -> None:
    ...
