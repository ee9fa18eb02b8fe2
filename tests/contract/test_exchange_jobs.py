"""Jobs, policies and events: what the gateway and the learner write, once, and in whose name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Delivery, Exchange, Fenced, UnreadableRecord
from protocol.messages import ActiveJob, JobRef, JobState, Requested
from protocol.streams import EVENTS, JOBS, WORK_STREAMS

from tests.builders import a_job_record, a_policy, a_recipe, a_request, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def next_job(exchange: Exchange) -> Delivery[JobRef]:
    delivery = await exchange.next_job(wait_s=0.01)
    assert delivery is not None
    return delivery


async def begin(exchange: Exchange, job_id: str = "job") -> int:
    await exchange.submit(a_job_record(job_id))
    return await exchange.begin_attempt(job_id)


def active(job_id: str = "job", attempt: int = 1) -> ActiveJob:
    return ActiveJob(job_id=job_id, attempt=attempt, recipe=a_recipe())


async def test_a_job_that_no_worker_could_read_does_not_become_active(exchange: Exchange) -> None:
    nested: Any = 1
    for _ in range(195):  # the record itself can still be read
        nested = [nested]
    outcome = {"verifier": "my.oracle", "settings": {"a": nested}}
    await exchange.submit(a_job_record(recipe=a_recipe(reward={"outcome": outcome})))
    record = await exchange.job("job")
    assert record is not None
    attempt = await exchange.begin_attempt("job")
    with pytest.raises(ValueError, match="recursion limit"):
        await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=record.recipe))
    assert await exchange.active() is None


async def test_a_submitted_record_is_stored_whole(exchange: Exchange) -> None:
    record = a_job_record(request={"model": "models/tiny", "seed": 3, "note": 'é "quoted"'})
    assert await exchange.submit(record)
    assert await exchange.job("job") == record
    assert await exchange.job("another") is None


@pytest.mark.parametrize(
    ("field", "stored", "problem"),
    [
        ("request", r'{"suffix": "\ud800"}', "hex escape"),
        ("state", '"weird"', "should be 'queued'"),
        ("state", "{damaged", "key must be a string"),
        ("created_at", "NaN", "should be a finite number"),
    ],
)
async def test_a_record_that_cannot_be_read_names_its_job_and_what_is_wrong(
    exchange: Exchange, server: Server, field: str, stored: str, problem: str
) -> None:
    await exchange.submit(a_job_record())
    await exchange.submit(a_job_record("other"))
    with server.client() as client:
        client.hset(streams.job_key("job"), field, stored)
    with pytest.raises(UnreadableRecord, match=f"job job: {field}: .*{problem}") as it:
        await exchange.job("job")
    assert (it.value.id, it.value.state) == ("job", JobState.FAILED)
    assert await exchange.job("other") == a_job_record("other")
    await exchange.request_state("job", Requested.CANCEL)
    (record, _) = await exchange.records(["job", "nobody", "other"])
    assert record.state is JobState.CANCELLED


async def test_an_active_job_that_cannot_be_read_is_nobodys_work(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    await exchange.activate(active())
    with server.client() as client:
        client.set(streams.ACTIVE, active().model_dump_json().replace("group_size", "gruop_size"))
    assert await exchange.active() is None


async def test_submitting_twice_queues_once(exchange: Exchange) -> None:
    assert await exchange.submit(a_job_record())
    assert not await exchange.submit(a_job_record(created_at=1.0))
    assert (await exchange.backlog(JOBS)).entries == 1
    assert await exchange.job("job") == a_job_record()


async def test_jobs_are_listed_newest_first(exchange: Exchange) -> None:
    for job_id, created_at in (("a", 3.0), ("b", 1.5), ("c", 2.25)):
        await exchange.submit(a_job_record(job_id, created_at=created_at))
    assert await exchange.job_ids() == ["a", "c", "b"]


async def test_the_learner_takes_up_jobs_in_order_and_finishes_one_first(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    assert await exchange.next_job(wait_s=0.01) is None
    for job_id in ("first", "second"):
        await exchange.submit(a_job_record(job_id))
    assert (await next_job(exchange)).job_id == "first"
    async with open_exchange("learner-2") as next_life:
        delivery = await next_job(next_life)
        assert delivery.job_id == "first"
        attempt = await next_life.begin_attempt("first")
        await next_life.close_job(delivery, attempt, state="succeeded")
        assert (await next_job(next_life)).job_id == "second"


async def test_a_learner_that_waits_is_woken_by_a_submission(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("learner-2") as learner:
        waiting = asyncio.create_task(learner.next_job(wait_s=10))
        await asyncio.sleep(0.05)
        await exchange.submit(a_job_record())
        delivery = await asyncio.wait_for(waiting, 8)
    assert delivery is not None
    assert delivery.job_id == "job"


async def test_a_forgotten_job_leaves_the_queue(exchange: Exchange) -> None:
    await exchange.submit(a_job_record())
    await exchange.forget_queued(await next_job(exchange))
    assert await exchange.next_job(wait_s=0.01) is None
    assert (await exchange.backlog(JOBS)).entries == 0
    assert await exchange.job("job") is not None


async def test_each_attempt_gets_the_next_number_and_is_counted(exchange: Exchange) -> None:
    await exchange.submit(a_job_record())
    assert [await exchange.begin_attempt("job") for _ in range(3)] == [1, 2, 3]
    record = await exchange.job("job")
    assert record is not None
    assert (record.attempt, record.attempts_since_checkpoint) == (3, 3)


async def test_a_record_of_an_earlier_release_is_read_and_counts_on(
    exchange: Exchange, server: Server
) -> None:
    await exchange.submit(a_job_record(attempt=3, attempts_since_checkpoint=3))
    with server.client() as client:
        client.hdel(streams.job_key("job"), "failures")
    assert await exchange.begin_attempt("job") == 4
    record = await exchange.job("job")
    assert record is not None
    assert (record.failures, record.attempts_since_checkpoint) == (0, 4)


async def test_an_attempt_at_no_job_or_an_ended_one_is_refused(exchange: Exchange) -> None:
    with pytest.raises(Fenced, match="ended"):
        await exchange.begin_attempt("nobody")
    await exchange.submit(a_job_record())
    await exchange.request_state("job", Requested.CANCEL)
    with pytest.raises(Fenced, match="ended"):
        await exchange.begin_attempt("job")
    for stream in WORK_STREAMS:
        assert (await exchange.backlog(stream, "job")).entries == 0
    record = await exchange.job("job")
    assert record is not None
    assert record.attempt == 0


async def test_only_the_current_attempt_writes_the_record(exchange: Exchange) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state="running", step=4, error=None)
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.step) == (JobState.RUNNING, 4)
    await exchange.begin_attempt("job")
    with pytest.raises(Fenced, match="attempt 1 gave way to 2"):
        await exchange.update_job("job", attempt, step=5)
    record = await exchange.job("job")
    assert record is not None
    assert record.step == 4


async def test_the_active_job_is_named_by_its_current_attempt_only(exchange: Exchange) -> None:
    assert await exchange.active() is None
    await begin(exchange)
    await exchange.activate(active(attempt=1))
    assert await exchange.active() == active(attempt=1)
    await exchange.begin_attempt("job")
    await exchange.activate(active(attempt=2))
    with pytest.raises(Fenced):
        await exchange.activate(active(attempt=1))
    assert await exchange.active() == active(attempt=2)


async def test_a_queued_job_is_cancelled_at_once(exchange: Exchange) -> None:
    await exchange.submit(a_job_record())
    await exchange.request_state("job", Requested.CANCEL)
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.requested) == (JobState.CANCELLED, Requested.CANCEL)
    assert record.finished_at is not None


async def test_a_running_job_keeps_its_state_until_the_learner_obeys(exchange: Exchange) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state="running")
    for requested in (Requested.PAUSE, Requested.RUN):
        await exchange.request_state("job", requested)
        record = await exchange.job("job")
        assert record is not None
        assert (record.state, record.requested) == (JobState.RUNNING, requested)


@pytest.mark.parametrize("later", [Requested.RUN, Requested.PAUSE])
async def test_who_asked_to_cancel_cannot_change_their_mind(
    exchange: Exchange, later: Requested
) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state="running")
    await exchange.request_state("job", Requested.CANCEL)
    await exchange.request_state("job", later)
    assert await exchange.requested_state("job") is Requested.CANCEL


@pytest.mark.parametrize("state", [state for state in JobState if state.is_final])
async def test_an_ended_job_stays_as_it_is(exchange: Exchange, state: JobState) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state=state)
    await exchange.request_state("job", Requested.PAUSE)
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.requested) == (state, Requested.RUN)


async def test_nothing_can_be_asked_of_no_job(exchange: Exchange) -> None:
    await exchange.request_state("nobody", Requested.CANCEL)
    assert await exchange.requested_state("nobody") is None
    assert await exchange.job("nobody") is None


async def test_a_closed_job_leaves_its_record_and_its_events(
    exchange: Exchange, server: Server
) -> None:
    attempt = await begin(exchange)
    await exchange.activate(active())
    await exchange.ask(a_request())
    await exchange.announce(a_policy())
    await exchange.record_event(an_event())
    delivery = await next_job(exchange)
    for _ in range(2):
        await exchange.close_job(delivery, attempt, state="failed", error="no memory")
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.error) == (JobState.FAILED, "no memory")
    assert await exchange.active() is None
    assert await exchange.next_job(wait_s=0.01) is None
    assert await exchange.newest_policy("job") is None
    with server.client() as client:
        left = {key.decode() for key in client.scan_iter()}
    assert left == {
        streams.job_key("job"),
        streams.PREFIX + "job_index",
        JOBS.key(),
        EVENTS.key("job"),
        streams.event_ids_key("job"),
    }


async def test_a_failed_job_is_queued_again_once_and_begins_with_fresh_streams(
    exchange: Exchange,
) -> None:
    attempt = await begin(exchange)
    await exchange.ask(a_request())
    await exchange.update_job("job", attempt, failures=2, step=7, started_at=3.5)
    delivery = await next_job(exchange)
    await exchange.close_job(delivery, attempt, state="failed", error="no memory", finished_at=4.5)
    for _ in range(2):
        await exchange.revive("job")
    record = await exchange.job("job")
    assert record == a_job_record(attempt=1, step=7, started_at=3.5)
    again = await next_job(exchange)
    assert (again.job_id, again.entry_id == delivery.entry_id) == ("job", False)
    assert (await exchange.backlog(JOBS)).entries == 1
    assert await exchange.begin_attempt("job") == 2
    await exchange.revive("job")  # it runs by now
    assert (await exchange.backlog(JOBS)).entries == 1
    assert await exchange.ask(a_request(attempt=2))


async def test_an_end_that_is_told_again_does_not_end_a_job_that_was_revived_since(
    exchange: Exchange,
) -> None:
    attempt = await begin(exchange)
    delivery = await next_job(exchange)
    await exchange.close_job(delivery, attempt, state="failed")
    await exchange.revive("job")
    await exchange.close_job(delivery, attempt, state="failed")  # the first reply was lost
    record = await exchange.job("job")
    assert record is not None
    assert record.state is JobState.QUEUED


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.FAILED])
async def test_only_a_failed_job_is_queued_again(exchange: Exchange, state: JobState) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state=state, error="as it was")
    await exchange.revive("job")
    await exchange.revive("nobody")
    assert (await exchange.backlog(JOBS)).entries == 1
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.error) == (state, "as it was")
    assert await exchange.job("nobody") is None


async def test_a_superseded_learner_cannot_close_the_job(exchange: Exchange) -> None:
    attempt = await begin(exchange)
    delivery = await next_job(exchange)
    await exchange.begin_attempt("job")
    with pytest.raises(Fenced):
        await exchange.close_job(delivery, attempt, state="failed")
    assert (await next_job(exchange)).job_id == "job"


async def test_closing_a_job_late_does_not_stop_the_one_after_it(exchange: Exchange) -> None:
    await begin(exchange, "first")
    closing = await next_job(exchange)
    await exchange.close_job(closing, 1, state="succeeded")
    await begin(exchange, "second")
    await exchange.activate(active("second"))
    await exchange.close_job(closing, 1, state="succeeded")
    assert await exchange.active() == active("second")
