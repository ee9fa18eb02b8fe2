"""The learner passes over a job whose record it cannot read."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

import pytest
from protocol import streams
from protocol.exchange import Exchange
from protocol.messages import ActiveJob, JobState, Requested

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.learner.job.role import work_on_one_job
from services.learner.training.ranks import Team
from tests.builders import a_job_record, a_recipe, a_request
from tests.contract.exchange_steps import record_of
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


async def work_until_the_queue_is_empty(exchange: Exchange, server: Server) -> None:
    environment = {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": "/unused", "WEIR_PORT": "0"}
    service = Service("learner", Deployment.from_environment(environment), exchange)
    working = asyncio.create_task(work_on_one_job(service, cast(Team, FakeTeam())))
    async with asyncio.timeout(60):
        while (await exchange.backlog(streams.JOBS)).entries and not working.done():
            await asyncio.sleep(0.02)
    service.stopping.set()
    await working


def put(server: Server, field: str, value: str) -> None:
    with server.client() as client:
        client.hset(streams.job_key("job"), field, value)


async def test_a_job_that_cannot_be_read_makes_way_for_the_next_and_can_be_read_later(
    exchange: Exchange, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await exchange.submit(a_job_record())
    attempt = await exchange.begin_attempt("job")
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=a_recipe()))
    await exchange.ask(a_request())
    await exchange.submit(a_job_record("next"))
    await exchange.request_state("next", Requested.CANCEL)
    put(server, "new_field", "1")
    with caplog.at_level(logging.ERROR):
        await work_until_the_queue_is_empty(exchange, server)
    assert "new_field: unknown key" in caplog.records[0].__dict__["why"]
    assert await exchange.active() is None
    with server.client() as client:
        assert not client.exists(streams.REQUESTS.key("job"))
        client.hdel(streams.job_key("job"), "new_field")
    record = await record_of(exchange)
    assert (record.state, record.recipe) == (JobState.FAILED, a_recipe())
    assert "new_field: unknown key" in str(record.error)


@pytest.mark.parametrize(
    ("field", "value"), [("attempt", '"many"'), ("state", json.dumps("succeeded"))]
)
async def test_a_job_that_cannot_even_be_ended_makes_way_too(
    exchange: Exchange, server: Server, field: str, value: str
) -> None:
    await exchange.submit(a_job_record())
    put(server, "new_field", "1")
    put(server, field, value)
    await work_until_the_queue_is_empty(exchange, server)
    assert await exchange.next_job(wait_s=0.01) is None
