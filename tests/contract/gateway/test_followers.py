"""Many may follow a job; all get every event once, in order, wherever they begin."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from protocol.exchange import Exchange
from protocol.messages import JobEvent, JobState

from services.chassis.service import Service
from services.gateway.api.openai.events import follow_until_ended
from services.gateway.core.files.store import FileStore
from services.gateway.core.jobs.service import JobService
from tests.builders import a_job_record
from tests.contract.test_work_loop import DEPLOYMENT
from tests.contract.valkey_server import Server

MOST = 501  # events of a test, and the end
pytestmark = [pytest.mark.redis, pytest.mark.anyio]


@pytest.fixture
async def jobs(exchange: Exchange, tmp_path: Path) -> JobService:
    await exchange.submit(a_job_record("job"))
    service = Service("gateway", DEPLOYMENT, exchange)
    return JobService(service, FileStore(tmp_path, 1000))


async def tell(exchange: Exchange, *numbers: int) -> None:
    for number in numbers:
        event = JobEvent(
            id=f"step:{number}", job_id="job", created_at=time.time(), message=f"step {number}"
        )
        await exchange.record_event(event)


async def end(exchange: Exchange) -> None:
    attempt = await exchange.begin_attempt("job")
    await exchange.update_job("job", attempt, state=JobState.SUCCEEDED)


async def read_steps(stream: AsyncIterator[str]) -> list[str]:
    events = list[str]()
    async for text in stream:
        parts = text.split("\n\n")
        events += [event for event in parts if event and not event.startswith(":")]
        assert len(events) <= MOST, "it tells them for ever"
    assert events.pop() == "data: [DONE]"
    return [event.split('"message": "')[1].split('"')[0] for event in events]


def step_names(*numbers: int) -> list[str]:
    return [f"step {number}" for number in numbers]


async def test_everyone_gets_every_event_once_from_where_they_begin(
    jobs: JobService, exchange: Exchange
) -> None:
    await tell(exchange, *range(5))
    third = (await exchange.events("job", count=3))[-1][0]

    def follow(place: str) -> asyncio.Task[list[str]]:
        return asyncio.create_task(read_steps(follow_until_ended(jobs, "job", place)))

    slow = follow_until_ended(jobs, "job", "0")
    assert "step 0" in await anext(slow)
    early = [follow("0") for _ in range(20)]
    midway = follow(third)
    for number in range(5, 9):
        await tell(exchange, number)
        await asyncio.sleep(0)
    late = follow("0")
    await tell(exchange, *range(9, 500))  # several pages
    await end(exchange)
    assert await asyncio.gather(*early, late) == [step_names(*range(500))] * 21
    assert await midway == step_names(*range(3, 500))
    assert await read_steps(slow) == step_names(*range(5, 500))


async def test_many_who_follow_a_job_read_it_once(
    jobs: JobService, exchange: Exchange, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower with a reader of its own asks for each event at least once."""
    read = AsyncMock(wraps=exchange.events)
    await tell(exchange, 0)
    newest = (await exchange.events("job"))[-1][0]
    monkeypatch.setattr(exchange, "events", read)
    early = [follow_until_ended(jobs, "job", "0") for _ in range(150)]
    for follower in early:
        assert "step 0" in await anext(follower)
    followers = early + [follow_until_ended(jobs, "job", newest) for _ in range(150)]
    reads = [asyncio.create_task(anext(follower)) for follower in followers]
    await asyncio.sleep(0)
    await tell(exchange, 1)
    assert all("step 1" in text for text in await asyncio.gather(*reads))
    assert read.await_count < 100
    with server.client() as client:
        clients: Any = client.info("clients")
    assert clients["connected_clients"] < 100
    for follower in followers:
        await follower.aclose()
    later = follow_until_ended(jobs, "job", newest)
    assert "step 1" in await anext(later)
    await later.aclose()
