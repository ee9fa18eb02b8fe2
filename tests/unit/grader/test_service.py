"""The grader as a process: real server, real streams, real workers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, GradedGroup, JobEvent
from protocol.streams import GRADED, REQUESTS, ROLLOUTS

from tests.builders import a_group, a_job_record, a_recipe, a_request, a_task
from tests.contract.valkey_server import Server
from tests.unit.grader.judge_server import MODEL, ScriptedServer, grades
from tests.unit.grader.pools import list_descendants, wait_until_gone

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

TEXTS = [r"1+1=2;\boxed{2}", r"\boxed{\sqrt{4}}", r"\boxed{3}"]


StartGrader = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_grader(valkey: Server, tmp_path: Path) -> Iterator[StartGrader]:
    """Starts graders with more settings of the environment; they end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"WEIR_REDIS_URL": valkey.url, "WEIR_DATA_DIR": str(tmp_path)}
        settings |= {"WEIR_PORT": str(port), "WEIR_GRADER_WORKERS": "2", "WEIR_HEARTBEAT_S": "0.1"}
        path = os.pathsep.join([str(tmp_path), *(entry or os.getcwd() for entry in sys.path)])
        process = subprocess.Popen(
            [sys.executable, "-m", "services.grader"],
            env=os.environ | settings | {"PYTHONPATH": path} | variables,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def offer(exchange: Exchange, count: int, solution: str | None = None, **reward: Any) -> None:
    """Play the learner and the rollout: ask for groups, and hand them off."""
    await exchange.submit(a_job_record("job"))
    attempt = await exchange.begin_attempt("job")
    recipe = a_recipe(reward=reward)
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=recipe))
    for number in range(count):
        task = a_task(solution=solution)
        request = a_request(number=number, attempt=attempt, group_size=len(TEXTS), task=task)
        await exchange.ask(request)
        (delivery,) = await exchange.claim((REQUESTS,), "job", count=1, wait_s=1)
        await exchange.hand_off(delivery, ROLLOUTS, a_group(request, texts=TEXTS))


async def collect(exchange: Exchange, count: int) -> list[GradedGroup]:
    graded: list[GradedGroup] = []
    async with asyncio.timeout(120):
        while len(graded) < count:
            entries = await exchange.claim((GRADED,), "job", count=count, wait_s=0.2)
            graded += [entry.message() for entry in entries]
    return graded


async def the_event(exchange: Exchange, kind: str) -> JobEvent:
    """The first event of this kind, once it is there."""
    async with asyncio.timeout(120):
        while True:
            for _, event in await exchange.events("job"):
                if event.id.startswith(kind):
                    return event
            await asyncio.sleep(0.05)


def list_scores(group: GradedGroup) -> list[tuple[float | None, float | None]]:
    return [(grade.accuracy, grade.process_score) for grade in group.grades]


async def test_groups_are_graded_and_the_service_leaves_no_process_behind(
    valkey: Server, start_grader: StartGrader
) -> None:
    grader = start_grader()
    async with connect(valkey.url, me="test") as exchange:
        await offer(exchange, count=20)
        graded = await collect(exchange, count=20)
    assert {group.key for group in graded} == {f"train:{number}" for number in range(20)}
    assert all(list_scores(group) == [(1, 1), (1, None), (0, None)] for group in graded)
    family = list_descendants(grader.pid)
    assert len(family) == 3  # the fork server, two workers
    grader.terminate()
    assert await asyncio.to_thread(grader.wait, 60) == 0
    await wait_until_gone(family)


async def test_groups_wait_while_the_judge_is_away(
    valkey: Server, start_grader: StartGrader
) -> None:
    async with connect(valkey.url, me="test") as exchange, ScriptedServer() as judge:
        judge.script = [grades(after_s=0.05)]
        await judge.go_away()
        await offer(exchange, count=3, process="model_judge", solution="1+1=2")
        start_grader(WEIR_JUDGE_URL=judge.url, WEIR_JUDGE_MODEL=MODEL)
        waits = await the_event(exchange, "gate:closed")
        assert "the judge is not up: " in waits.message
        assert (await exchange.backlog(ROLLOUTS, "job")).claimed == 0
        await judge.come()
        graded = await collect(exchange, count=3)
        await the_event(exchange, "gate:open")
    assert all(list_scores(group) == [(1, 1), (1, 1), (0, None)] for group in graded)
