"""The grader as a process: real server, real streams, real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, GradedGroup
from protocol.streams import GRADED, REQUESTS, ROLLOUTS

from tests.builders import a_group, a_job_record, a_recipe, a_request
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

TEXTS = [r"1+1=2;\boxed{2}", r"\boxed{\sqrt{4}}", r"\boxed{3}"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def grader(server: Server, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path)}
    settings |= {"WEIR_PORT": str(port), "WEIR_GRADER_WORKERS": "2", "WEIR_HEARTBEAT_S": "0.1"}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "services.grader"],
        env=os.environ | settings | {"PYTHONPATH": path},
        start_new_session=True,
    )
    yield process
    process.kill()
    process.wait()


async def offer(exchange: Exchange, count: int) -> None:
    """Play the learner and the rollout: ask for groups, and hand them off."""
    await exchange.submit(a_job_record("job"))
    attempt = await exchange.begin_attempt("job")
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=a_recipe()))
    for number in range(count):
        request = a_request(number=number, attempt=attempt, group_size=len(TEXTS))
        await exchange.ask(request)
        (delivery,) = await exchange.claim((REQUESTS,), "job", count=1, wait_s=1)
        await exchange.hand_off(delivery, ROLLOUTS, a_group(request, texts=TEXTS))


async def collect(exchange: Exchange, count: int) -> list[GradedGroup]:
    graded: list[GradedGroup] = []
    async with asyncio.timeout(20):
        while len(graded) < count:
            entries = await exchange.claim((GRADED,), "job", count=count, wait_s=0.2)
            graded += [entry.message() for entry in entries]
    return graded


def group_members(group: int) -> list[int]:
    """The living processes of a process group."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                members.append(int(path.parent.name))
    return members


async def until_empty(group: int) -> None:
    async with asyncio.timeout(5):
        while group_members(group):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
async def test_groups_are_graded_and_the_service_leaves_no_process_behind(
    server: Server, grader: subprocess.Popen[bytes], signum: signal.Signals, status: int
) -> None:
    async with connect(server.url, me="test") as exchange:
        await offer(exchange, count=20)
        graded = await collect(exchange, count=20)
    assert {group.key for group in graded} == {f"train:{number}" for number in range(20)}
    for group in graded:
        assert [grade.accuracy for grade in group.grades] == [1, 1, 0]
        assert [grade.process_score for grade in group.grades] == [1, 0, None]
    assert len(group_members(grader.pid)) == 4  # service, nursery, two workers
    grader.send_signal(signum)
    assert await asyncio.to_thread(grader.wait, 10) == status
    await until_empty(grader.pid)
