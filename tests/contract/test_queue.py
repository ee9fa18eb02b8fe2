"""No job holds the queue: what is paused or held up makes way, and comes back to its place."""

from __future__ import annotations

import pytest
from protocol import streams
from protocol.exchange import Exchange, Fenced
from protocol.messages import ActiveJob, Fault, JobState, Requested
from protocol.streams import JOBS

from tests.builders import a_job_record, a_recipe, a_request
from tests.contract.attempts import Learner, until
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import record_of, taken_up
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


async def submit(exchange: Exchange, *job_ids: str) -> None:
    for job_id in job_ids:
        await exchange.submit(a_job_record(job_id))


async def next_id(exchange: Exchange) -> str | None:
    """The job that a learner would work on, which is also what others are told."""
    told = await exchange.active() or await exchange.queue()
    delivery = await exchange.next_job(wait_s=0)
    first = told.job_id if isinstance(told, ActiveJob) else told.first
    assert first == (delivery.job_id if delivery else "")
    return delivery.job_id if delivery else None


async def work_on(exchange: Exchange, job_id: str) -> int:
    attempt = await exchange.begin_attempt(job_id)
    await exchange.update_job(job_id, attempt, state=JobState.RUNNING)
    await exchange.activate(ActiveJob(job_id=job_id, attempt=attempt, recipe=a_recipe()))
    return attempt


async def state_of(exchange: Exchange, job_id: str) -> tuple[JobState, Requested]:
    record = await record_of(exchange, job_id)
    return record.state, record.requested


async def test_a_job_that_is_paused_while_queued_is_passed_over_and_keeps_its_place(
    exchange: Exchange,
) -> None:
    await submit(exchange, "first", "second")
    assert (await exchange.queue()).order == ["first", "second"]
    await exchange.request_state("first", Requested.PAUSE)
    assert (await exchange.queue()).order == ["second"]
    assert await state_of(exchange, "first") == (JobState.PAUSED, Requested.PAUSE)
    assert await next_id(exchange) == "second"
    await exchange.request_state("first", Requested.RUN)
    assert await state_of(exchange, "first") == (JobState.QUEUED, Requested.RUN)
    assert await next_id(exchange) == "first"
    await exchange.request_state("first", Requested.PAUSE)
    await exchange.request_state("second", Requested.PAUSE)
    assert await next_id(exchange) is None


async def test_a_resumed_job_waits_for_the_one_that_runs_and_comes_before_those_behind_it(
    exchange: Exchange, server: Server
) -> None:
    await submit(exchange, "first", "second", "third")
    attempt = await work_on(exchange, "first")
    await exchange.ask(a_request(job_id="first"))
    await exchange.request_state("first", Requested.PAUSE)
    assert await exchange.pause_job("first", attempt, "80% failed")
    assert await exchange.active() is None
    with server.client() as client:
        assert client.keys("weir:*first*") == [b"weir:job:first"]  # the others need the memory
    record = await record_of(exchange, "first")
    assert (record.state, str(record.error)) == (JobState.PAUSED, "80% failed")
    assert await next_id(exchange) == "second"
    await work_on(exchange, "second")
    await exchange.request_state("first", Requested.RUN)
    assert await next_id(exchange) == "second"  # a learner that was killed goes on with it
    delivery = await taken_up(exchange)
    await exchange.close_job(delivery, 1, state="succeeded")
    assert await next_id(exchange) == "first"
    record = await record_of(exchange, "first")
    assert (record.state, record.error) == (JobState.QUEUED, None)


async def test_a_job_that_is_resumed_before_it_was_paused_goes_on(exchange: Exchange) -> None:
    await submit(exchange, "first", "second")
    attempt = await work_on(exchange, "first")
    await exchange.request_state("first", Requested.PAUSE)
    await exchange.request_state("first", Requested.RUN)
    assert not await exchange.pause_job("first", attempt, None)
    assert await state_of(exchange, "first") == (JobState.RUNNING, Requested.RUN)
    assert await next_id(exchange) == "first"


async def test_a_learner_that_was_killed_before_it_could_pause_its_job_takes_the_next_one(
    exchange: Exchange,
) -> None:
    await submit(exchange, "first", "second")
    await work_on(exchange, "first")
    await exchange.request_state("first", Requested.PAUSE)
    delivery = await taken_up(exchange)
    assert delivery.job_id == "second"
    assert await exchange.active() is None
    assert await state_of(exchange, "first") == (JobState.PAUSED, Requested.PAUSE)


async def hold_up(exchange: Exchange, job_id: str) -> None:
    attempt = await exchange.begin_attempt(job_id)
    assert await exchange.pause_job(job_id, attempt, "the disk is full", Fault.MACHINE)


async def test_a_job_that_is_held_up_lets_the_others_run_and_is_tried_when_one_has_ended(
    exchange: Exchange,
) -> None:
    await submit(exchange, "first", "second", "third")
    await hold_up(exchange, "first")
    assert await state_of(exchange, "first") == (JobState.PAUSED, Requested.RUN)
    assert await next_id(exchange) == "second"
    attempt = await exchange.begin_attempt("second")
    delivery = await taken_up(exchange)
    await exchange.close_job(delivery, attempt, state="failed")
    assert await next_id(exchange) == "first"
    await hold_up(exchange, "first")
    assert await next_id(exchange) == "third"
    await exchange.request_state("first", Requested.RUN)  # somebody has mended it
    assert await next_id(exchange) == "first"


async def test_jobs_that_are_all_held_up_are_tried_in_turn(exchange: Exchange) -> None:
    await submit(exchange, "first", "second", "third")
    tried: list[str] = []
    for _ in range(7):
        job_id = await next_id(exchange)
        assert job_id is not None
        tried.append(job_id)
        await hold_up(exchange, job_id)
    assert tried == [*["first", "second", "third"] * 2, "first"]


async def test_a_job_that_is_to_be_cancelled_is_not_held_up_and_ends_in_its_next_attempt(
    exchange: Exchange,
) -> None:
    await submit(exchange, "first", "second")
    attempt = await work_on(exchange, "first")
    await exchange.request_state("first", Requested.CANCEL)
    assert not await exchange.pause_job("first", attempt, "the disk is full", Fault.MACHINE)
    assert await state_of(exchange, "first") == (JobState.RUNNING, Requested.CANCEL)
    assert await next_id(exchange) == "first"


async def test_a_paused_job_is_cancelled_at_once_and_nothing_but_its_record_is_left(
    exchange: Exchange, server: Server
) -> None:
    await submit(exchange, "first", "second")
    attempt = await work_on(exchange, "first")
    await exchange.ask(a_request(job_id="first"))
    await exchange.request_state("first", Requested.PAUSE)
    await exchange.pause_job("first", attempt, None)
    await exchange.request_state("first", Requested.CANCEL)
    assert await state_of(exchange, "first") == (JobState.CANCELLED, Requested.CANCEL)
    assert await next_id(exchange) == "second"
    assert (await exchange.backlog(JOBS)).entries == 1
    with server.client() as client:
        assert client.keys("weir:*first*") == [b"weir:job:first"]
    with pytest.raises(Fenced, match="ended"):
        await exchange.pause_job("first", attempt, None)


async def test_a_learner_that_has_lost_its_role_makes_no_other_job_active(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await submit(exchange, "first", "second")
    await exchange.renew_lease()
    attempt = await work_on(exchange, "first")
    async with open_exchange("learner-2") as heir:
        await heir.renew_lease(await exchange.renew_lease())
        await work_on(heir, "second")
        with pytest.raises(Fenced, match="taken over"):
            await exchange.activate(ActiveJob(job_id="first", attempt=attempt, recipe=a_recipe()))
    active = await exchange.active()
    assert active is not None
    assert active.job_id == "second"


def put(server: Server, **values: str) -> None:
    with server.client() as client:
        for field, value in values.items():
            client.hset(streams.job_key("job"), field, value)


async def work_until_the_queue_is_empty(learner: Learner) -> None:
    async def is_empty() -> bool:
        return not (await learner.exchange.backlog(JOBS)).entries

    async with learner.attempting() as attempt:
        await until(is_empty)
        learner.services[-1].stop()
        await attempt


async def test_a_job_that_cannot_be_read_makes_way_and_can_be_read_later(
    exchange: Exchange, server: Server, learner: Learner
) -> None:
    await submit(exchange, "job")
    await work_on(exchange, "job")
    await exchange.ask(a_request())
    put(server, new_field="1")
    await work_until_the_queue_is_empty(learner)
    assert await exchange.active() is None
    with server.client() as client:
        assert client.keys("weir:*job*:*") == [b"weir:job:job"]
        client.hdel(streams.job_key("job"), "new_field")
    record = await record_of(exchange)
    assert (record.state, record.recipe) == (JobState.FAILED, a_recipe())
    assert "new_field: unknown key" in str(record.error)


@pytest.mark.parametrize("damage", [{"attempt": '"many"'}, {"state": '"succeeded"'}])
async def test_a_job_that_cannot_even_be_ended_makes_way_too(
    exchange: Exchange, server: Server, learner: Learner, damage: dict[str, str]
) -> None:
    await submit(exchange, "job")
    put(server, new_field="1", **damage)
    await work_until_the_queue_is_empty(learner)
    assert await exchange.next_job(wait_s=0.01) is None
