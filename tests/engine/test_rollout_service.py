"""The rollout service as a process, between a real server and a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from protocol import weights
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, JobRecord, PolicyVersion, RolloutGroup, RolloutRequest
from protocol.recipe import Sampling
from protocol.streams import REQUESTS, ROLLOUTS

from tests.builders import a_recipe, a_request
from tests.contract.valkey_server import Server
from tests.engine.conftest import MAX_CONTEXT, TOLERANCE, Reference

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(900)]


@dataclass
class Stack:
    """A server, a job with weights, and the rollout service as a process."""

    server: Server
    exchange: Exchange
    data_dir: Path
    port: int
    process: subprocess.Popen[bytes]

    async def announce(self, number: int, source: Path, attempt: int = 1) -> PolicyVersion:
        folder = weights.version_folder("job", attempt, number)

        def fill(target: Path) -> None:
            shutil.copytree(source, target, dirs_exist_ok=True)

        digest = weights.write(self.data_dir / "weights", folder, fill)
        policy = PolicyVersion(
            job_id="job", attempt=attempt, number=number, folder=folder, digest=digest
        )
        await self.exchange.announce(policy)
        return policy

    async def next_groups(self, count: int) -> dict[str, RolloutGroup]:
        """The next groups that reach the graders, by key."""
        groups: dict[str, RolloutGroup] = {}
        async with asyncio.timeout(240):
            while len(groups) < count:
                assert self.process.poll() is None, "the service has ended"
                for delivery in await self.exchange.claim(
                    [ROLLOUTS], "job", count=count, wait_s=0.2
                ):
                    groups[delivery.key] = delivery.message()
        return groups

    async def until_metrics_show(self, line: str) -> None:
        async with asyncio.timeout(30), httpx.AsyncClient(timeout=30) as client:
            while line not in (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text:
                await asyncio.sleep(0.05)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    server = Server(tmp_path)
    server.start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(["proto", "."]),
        "WEIR_REDIS_URL": server.url,
        "WEIR_DATA_DIR": str(tmp_path / "data"),
        "WEIR_PORT": str(port),
        "WEIR_NAME": "rollout-1",
        "WEIR_ROLLOUT_KV_CACHE_MIB": "64",
    }
    async with connect(server.url, me="learner-1", patience_s=5) as exchange:
        recipe = a_recipe(model={"max_context": MAX_CONTEXT}, rollout={"group_size": 2})
        await exchange.submit(JobRecord(id="job", created_at=0.0, recipe=recipe))
        attempt = await exchange.begin_attempt("job")
        await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=recipe))
        command = [sys.executable, "-m", "services.rollout"]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        yield Stack(server, exchange, tmp_path / "data", port, process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    server.stop()


def a_prompted_request(number: int, **changes: Any) -> RolloutRequest:
    return a_request(number=number, prompt_template="{prompt}", **changes)


async def test_the_service_answers_follows_the_policy_and_ends_with_its_engine(
    stack: Stack, folders: list[Path], reference: Reference
) -> None:
    await stack.announce(0, folders[0])
    await stack.exchange.ask(a_prompted_request(0))
    await stack.exchange.ask(a_prompted_request(1, min_version=1))
    (first,) = (await stack.next_groups(1)).values()
    assert first.key == "train:0"
    await stack.announce(1, folders[1])
    (second,) = (await stack.next_groups(1)).values()
    assert second.key == "train:1"
    for version, group in enumerate([first, second]):
        assert {span.version for r in group.responses for span in r.spans} == {version}
        for start, end in group.bounds():
            ids = group.token_ids[start:end]
            expected = reference(folders[version], group.prompt_ids.tolist(), ids)
            assert np.abs(expected - group.behavior_logprobs[start:end]).max() < TOLERANCE
    await stack.until_metrics_show("weir_policy_version 1.0")
    await stack.until_metrics_show("weir_sampled_tokens_total 32.0")

    (core,) = [
        process
        for process in psutil.Process(stack.process.pid).children(recursive=True)
        if "EngineCore" in process.name()
    ]
    long = Sampling(max_tokens=480)
    await stack.exchange.ask(a_prompted_request(2, sampling=long, group_size=16))
    while (await stack.exchange.backlog(REQUESTS, "job")).claimed == 0:
        await asyncio.sleep(0.01)
    core.kill()
    assert await asyncio.to_thread(stack.process.wait, 60) == 1
    assert not psutil.pid_exists(core.pid) or core.status() == psutil.STATUS_ZOMBIE
    (left,) = await stack.exchange.reclaim(REQUESTS, "job", count=9)
    assert (left.key, len(left.deaths), left.failures) == ("train:2", 1, ())


async def test_the_service_takes_a_lower_version_refuses_damage_and_leaves_in_good_order(
    stack: Stack, folders: list[Path]
) -> None:
    await stack.announce(7, folders[0])
    await stack.exchange.ask(a_prompted_request(0))
    await stack.next_groups(1)
    damaged = PolicyVersion(
        job_id="job", attempt=1, number=8, folder=weights.version_folder("job", 1, 7), digest="0"
    )
    await stack.exchange.announce(damaged)
    await stack.until_metrics_show('weir_weight_sync_failures_total{why="damaged"}')
    await stack.exchange.ask(a_prompted_request(1))
    (during,) = (await stack.next_groups(1)).values()
    assert during.responses[0].spans[0].version == 7

    assert await stack.exchange.begin_attempt("job") == 2
    await stack.announce(3, folders[1], attempt=2)
    await stack.until_metrics_show("weir_policy_version 3.0")
    await stack.exchange.ask(a_prompted_request(2, attempt=2))
    (after,) = (await stack.next_groups(1)).values()
    assert (after.responses[0].spans[0].attempt, after.responses[0].spans[0].version) == (2, 3)

    stack.process.terminate()
    assert await asyncio.to_thread(stack.process.wait, 60) == 0


async def test_the_service_ends_when_the_policy_needs_another_engine(
    stack: Stack, folders: list[Path], tmp_path: Path
) -> None:
    await stack.announce(0, folders[0])
    await stack.exchange.ask(a_prompted_request(0))
    await stack.next_groups(1)
    other = shutil.copytree(folders[1], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    await stack.announce(1, other)
    assert await asyncio.to_thread(stack.process.wait, 60) == 1


async def test_an_engine_that_does_not_start_is_told_to_the_job_and_to_who_asks_why(
    stack: Stack, folders: list[Path], tmp_path: Path
) -> None:
    unknown = shutil.copytree(folders[0], tmp_path / "unknown")
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    await stack.announce(0, unknown)
    assert await asyncio.to_thread(stack.process.wait, 60) == 1
    (_, event), *_ = await stack.exchange.events("job")
    assert event.level == "warn"
    assert "rollout-1 does not start: vLLM did not start on" in event.message
    assert "NoSuchModel" in event.message
    assert event.message.endswith("attempt 1; see its log")
    (status,) = (await stack.exchange.statuses()).values()
    assert (status.ready, status.starts) == (False, 1)
    assert "NoSuchModel" in str(status.error)
