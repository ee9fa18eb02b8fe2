"""What grows when a job goes on and on: ``python -m tests.benchmarks.soak --steps 100000``.

The learner, a rollout and a grader, the product's own, work in this process as fast as they can,
with a real server; `tests.chaos` has what stands in for the models. A table tells what they need of
memory and disk as the steps go by. In the end nothing may have grown: the second half of the steps
needs what the first half needed. With TMPDIR on a disk in memory it is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from protocol.exchange import Exchange, connect
from protocol.messages import JobRecord, JobState
from protocol.streams import EVENTS, POLICY, WORK_STREAMS

from deploy.processes import size_of
from services.chassis.service import Service
from services.learner.job.work import work_on_one_job
from tests.chaos.hash_team import HashTeam
from tests.chaos.recipe import a_chaos_recipe, write_tasks
from tests.chaos.seats import GRADER_SEATS, LEARNER, ROLLOUT_SEATS, Place
from tests.chaos.stack import JOB
from tests.chaos.worker_seats import grade, sample
from tests.contract.valkey_server import Server

ROWS = 20
MOST_GROWTH = 0.05  # of the second half over the first
KEPT_SAMPLES_BYTES = 2**18
_LOOK_EVERY_S = 0.05
_KIB = 2**10


@dataclass(frozen=True)
class Needs:
    """What a job needs after so many steps; sizes in KiB."""

    step: int
    seconds: int
    redis: int
    memory: int  # of this process
    log: int
    samples: int
    checkpoints: int
    weights: int
    state_json: int
    files: int  # number
    events: int  # number
    under_way: int  # entries of the other streams

    def __str__(self) -> str:
        return "".join(f"{value:12,}" for value in astuple(self))


_EVALUATIONS = 100  # each leaves half a KiB in state.json, of which there are two
_NOISE = {
    "redis": 256,
    "memory": 8192,
    "log": 512,  # two segments
    "samples": 64,  # a segment
    "state_json": 64,
    "checkpoints": 128,
    "files": 16,
    "under_way": 64,
    "weights": 16,  # versions that are just being written or read
}


def grown(rows: Sequence[Needs]) -> list[str]:
    """What the second half of the steps needed more of than the first, in words."""
    half = rows[-1].step / 2
    problems: list[str] = []
    for name in [part.name for part in fields(Needs)][2:]:
        before = max(getattr(row, name) for row in rows if row.step <= half)
        after = max(getattr(row, name) for row in rows if row.step > half)
        if after > before * (1 + MOST_GROWTH) + _NOISE.get(name, 0):
            problems.append(f"{name} grew from {before:,} to {after:,}")
    return problems


async def soak(folder: Path, steps: int, tell: Callable[[Needs], object]) -> list[Needs]:
    """Let a job make so many steps; tells and returns what it needs on the way."""
    write_tasks(folder / "data" / "files")
    rows: list[Needs] = []
    async with AsyncExitStack() as opened:
        server = opened.enter_context(Server(folder))
        with server.client() as client:
            client.config_set("appendfsync", "no")  # nothing is killed here
        user = await opened.enter_async_context(connect(server.url, me="user"))
        recipe = a_chaos_recipe(
            steps=steps, checkpoint_every=20, evaluate_every=max(100, steps // _EVALUATIONS)
        )
        await user.submit(JobRecord(id=JOB, created_at=time.time(), recipe=recipe))
        await opened.enter_async_context(_working(server.url, folder))
        began = time.monotonic()
        while not (record := await _record(user)).state.is_final:
            if record.step >= len(rows) * steps / ROWS:
                rows.append(_needs(record.step, time.monotonic() - began, server, folder))
                tell(rows[-1])
            await asyncio.sleep(_LOOK_EVERY_S)
    assert record.state is JobState.SUCCEEDED, record.error
    return rows


@asynccontextmanager
async def _working(url: str, folder: Path) -> AsyncIterator[None]:
    """A learner, a rollout and a grader are at work while the body runs."""
    async with AsyncExitStack() as opened:
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        for seat, main in _MAINS.items():
            place = Place(seat, 0, url, folder)
            exchange = await opened.enter_async_context(connect(url, me=place.me))
            service = Service(seat.role, replace(place.deployment(), **_SETTINGS), exchange)
            opened.callback(service.stopping.set)
            tasks.create_task(main(service, place))
        yield


async def _learn(service: Service, place: Place) -> None:
    await work_on_one_job(service, HashTeam())


_MAINS = {LEARNER: _learn, ROLLOUT_SEATS[0]: sample, GRADER_SEATS[0]: grade}
_SETTINGS: dict[str, Any] = {
    "heartbeat_s": 1.0,
    "claim_idle_s": 15.0,
    "keep_samples_bytes": KEPT_SAMPLES_BYTES,
}


async def _record(user: Exchange) -> JobRecord:
    record = await user.job(JOB)
    assert record is not None
    return record


def _needs(step: int, seconds: float, server: Server, folder: Path) -> Needs:
    job = folder / "data" / "jobs" / JOB
    states = sorted((job / "checkpoints").glob("step-*/state.json"))
    with server.client() as client:
        redis = cast(dict[str, Any], client.info("memory"))["used_memory"]
        lengths = {s: cast(int, client.xlen(s.key(JOB))) for s in (*WORK_STREAMS, POLICY, EVENTS)}
    return Needs(
        step=step,
        seconds=round(seconds),
        redis=redis // _KIB,
        memory=_resident_bytes() // _KIB,
        log=size_of(job / "log") // _KIB,
        samples=size_of(job / "samples") // _KIB,
        checkpoints=size_of(job / "checkpoints") // _KIB,
        weights=size_of(folder / "data" / "weights") // _KIB,
        state_json=states[-1].stat().st_size // _KIB if states else 0,
        files=sum(len(names) for _, _, names in os.walk(folder / "data")),
        events=lengths.pop(EVENTS),
        under_way=sum(lengths.values()),
    )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Soak, and say what has grown; the exit status is 1 if something has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    with tempfile.TemporaryDirectory(prefix="weir-soak-") as folder:
        print("".join(f"{part.name:>12}" for part in fields(Needs)))
        rows = asyncio.run(soak(Path(folder), parser.parse_args().steps, print))
    problems = grown(rows)
    print(*problems or ["nothing grew"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
