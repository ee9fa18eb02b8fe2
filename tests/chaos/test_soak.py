"""Nothing grows during a long job: 100,000 steps, or the number in STEPS.

A learner, a rollout and a grader of the product work in this process as fast as they can, with a
real server. Lines show their memory and disk space over the steps. The second half of the steps
must need no more than the first half. With TMPDIR on a disk in memory it is faster.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from protocol.exchange import connect, news
from protocol.messages import JobRecord, JobState
from protocol.streams import EVENTS, POLICY, WORK_STREAMS

from deploy.processes import folder_size
from services.chassis.service import Service
from tests.chaos.job import JOB, a_chaos_recipe, write_tasks
from tests.chaos.places import LEARNER, ROLLOUTS, WORKERS, Place
from tests.chaos.processes import MAINS
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.redis, pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(0)]

ROWS = 20
Needs = dict[str, int]  # of a job after so many steps; sizes in KiB
MOST_GROWTH = 0.05  # of the second half over the first
_KIB = 2**10
_SETTINGS: dict[str, Any] = {
    "heartbeat_s": 1.0,
    "claim_idle_s": 15.0,
    "keep_samples_bytes": 2**18,
}
_EVALUATIONS = 100  # each leaves half a KiB in state.json, of which there are two
_NOISE = {
    "redis": 256,
    "memory": 8192,
    "log": 512,  # two segments
    "samples": 64,  # a few steps
    "state_json": 64,
    "checkpoints": 128,
    "files": 16,
    "under_way": 64,
    "weights": 16,  # versions that are just being written or read
}


def test_nothing_grows_with_the_steps_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = int(os.environ.get("STEPS", "100000"))
    if steps < 10 * news.MAX_EVENTS:
        monkeypatch.setattr(news, "MAX_EVENTS", steps // 3)
    rows = asyncio.run(_soak(tmp_path, steps))
    assert rows[-1]["step"] > 2 * steps / 3
    early = [row for row in rows if row["step"] <= steps / 2]
    late = rows[len(early) :]
    for name in rows[0].keys() - {"step", "seconds"}:
        before, after = (max(row[name] for row in half) for half in (early, late))
        assert after <= before * (1 + MOST_GROWTH) + _NOISE.get(name, 0), name


async def _soak(folder: Path, steps: int) -> list[Needs]:
    """Let a job make so many steps; prints and returns its needs on the way."""
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
        await user.submit(
            JobRecord(
                id=JOB,
                created_at=time.time(),
                recipe=recipe,
            )
        )
        await opened.enter_async_context(_working(server.url, folder))
        began = time.monotonic()
        while (record := await user.job(JOB)) and not record.state.is_final:
            if record.step >= len(rows) * steps / ROWS:
                rows.append(_needs(record.step, time.monotonic() - began, server, folder))
                print(rows[-1], flush=True)
            await asyncio.sleep(0.05)
    assert record is not None
    assert record.state is JobState.SUCCEEDED, record.error
    return rows


@asynccontextmanager
async def _working(url: str, folder: Path) -> AsyncIterator[None]:
    """A learner, a rollout and a grader are at work while the body runs."""
    async with AsyncExitStack() as opened:
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        (folder / "switches").mkdir()
        for replica in (LEARNER, ROLLOUTS[0], WORKERS[-1]):
            place = Place(replica, 0, url, folder)
            exchange = await opened.enter_async_context(connect(url, me=place.new_life()))
            service = Service(replica.role, replace(place.deployment(), **_SETTINGS), exchange)
            opened.callback(service.stopping.set)
            tasks.create_task(MAINS[replica.role](service, place))
        yield


def _needs(step: int, seconds: float, server: Server, folder: Path) -> Needs:
    job = folder / "data" / "jobs" / JOB
    states = sorted((job / "checkpoints").glob("step-*/state.json"))
    with server.client() as client:
        redis = cast(dict[str, Any], client.info("memory"))["used_memory"]
        lengths = {s: cast(int, client.xlen(s.key(JOB))) for s in (*WORK_STREAMS, POLICY, EVENTS)}
    sizes = {
        "redis": redis,
        "memory": psutil.Process().memory_info().rss,
        "log": folder_size(job / "log"),
        "samples": folder_size(job / "samples"),
        "checkpoints": folder_size(job / "checkpoints"),
        "weights": folder_size(folder / "data" / "weights"),
        "state_json": states[-1].stat().st_size if states else 0,
    }
    return {name: size // _KIB for name, size in sizes.items()} | {
        "step": step,
        "seconds": round(seconds),
        "files": sum(len(names) for _, _, names in os.walk(folder / "data")),
        "events": lengths.pop(EVENTS),
        "under_way": sum(lengths.values()),
    }
