"""No job holds the queue: what is paused or held up makes way, and comes back to its place."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from protocol import streams
from protocol.exchange import Exchange, Fenced
from protocol.messages import ActiveJob, Fault, JobState, Requested
from protocol.streams import JOBS
from redis import Redis

from tests.builders import a_job_record, a_recipe, a_request
from tests.contract.attempts import Learner, until
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import activate, an_active_job, record_of, taken_up


@dataclass
class Queue:
    """Of three jobs, in this order: first, second and third."""

    exchange: Exchange

    async def next(self) -> str:
        """The job that a learner would work on, as others see it, too."""
        first = await self.exchange.active() or await self.exchange.queue()
        delivery = await self.exchange.next_job(wait_s=0)
        job_id = delivery.job_id if delivery else ""
        assert job_id == (first.job_id if isinstance(first, ActiveJob) else first.first)
        return job_id

    async def request(self, wish: Requested, job_id: str = "first") -> None:
        await self.exchange.request_state(job_id, wish)

    async def work(self, job_id: str = "first") -> int:
        attempt = await self.exchange.begin_attempt(job_id)
        await self.exchange.update_job(job_id, attempt, state=JobState.RUNNING)
        await self.exchange.activate(an_active_job(job_id, attempt))
        return attempt

    async def pause(self, attempt: int, fault: Fault | None = None) -> bool:
        """The learner tries to pause the first job."""
        return await self.exchange.pause_job("first", attempt, "80% failed", fault)

    async def hold_up(self, job_id: str = "first") -> None:
        attempt = await self.exchange.begin_attempt(job_id)
        assert await self.exchange.pause_job(job_id, attempt, "the disk is full", Fault.MACHINE)

    async def end(self, attempt: int = 1) -> None:
        """The job that is taken up now has succeeded."""
        await self.exchange.close_job(await taken_up(self.exchange), attempt, state="succeeded")

    async def first(self) -> tuple[JobState, Requested]:
        record = await record_of(self.exchange, "first")
        return record.state, record.requested


@pytest.fixture
async def queue(exchange: Exchange) -> Queue:
    for job_id in ("first", "second", "third"):
        await exchange.submit(a_job_record(job_id))
    return Queue(exchange)


async def test_a_job_that_is_paused_while_queued_is_passed_over_and_keeps_its_place(
    queue: Queue,
) -> None:
    assert (await queue.exchange.queue()).order == ["first", "second", "third"]
    await queue.request(Requested.PAUSE)
    assert (await queue.exchange.queue()).order == ["second", "third"]
    assert await queue.first() == (JobState.PAUSED, Requested.PAUSE)
    assert await queue.next() == "second"
    await queue.request(Requested.RUN)
    assert await queue.first() == (JobState.QUEUED, Requested.RUN)
    assert await queue.next() == "first"
    for job_id in ("first", "second", "third"):
        await queue.request(Requested.PAUSE, job_id)
    assert not await queue.next()


async def test_a_resumed_job_waits_for_the_one_that_runs_and_comes_before_those_behind_it(
    queue: Queue, client: Redis
) -> None:
    attempt = await queue.work()
    await queue.exchange.ask(a_request(job_id="first"))
    await queue.request(Requested.PAUSE)
    assert await queue.pause(attempt)
    assert await queue.exchange.active() is None
    assert client.keys("weir:*first*") == [b"weir:job:first"]  # the others need the memory
    record = await record_of(queue.exchange, "first")
    assert (record.state, str(record.error)) == (JobState.PAUSED, "80% failed")
    assert await queue.next() == "second"
    await queue.work("second")
    await queue.request(Requested.RUN)
    assert await queue.next() == "second"  # a learner that was killed goes on with it
    await queue.end()
    assert await queue.next() == "first"
    record = await record_of(queue.exchange, "first")
    assert (record.state, record.error) == (JobState.QUEUED, None)


@pytest.mark.parametrize(
    ("wishes", "fault"),
    [([Requested.PAUSE, Requested.RUN], None), ([Requested.CANCEL], Fault.MACHINE)],
)
async def test_a_job_that_is_to_run_on_or_to_be_cancelled_is_not_paused(
    queue: Queue, wishes: list[Requested], fault: Fault | None
) -> None:
    attempt = await queue.work()
    for wish in wishes:
        await queue.request(wish)
    assert not await queue.pause(attempt, fault)
    assert await queue.first() == (JobState.RUNNING, wishes[-1])
    assert await queue.next() == "first"


async def test_a_learner_that_was_killed_before_it_could_pause_its_job_takes_the_next_one(
    queue: Queue,
) -> None:
    await queue.work()
    await queue.request(Requested.PAUSE)
    assert (await taken_up(queue.exchange)).job_id == "second"
    assert await queue.exchange.active() is None
    assert await queue.first() == (JobState.PAUSED, Requested.PAUSE)


async def test_a_job_that_is_held_up_lets_the_others_run_and_is_tried_when_one_has_ended(
    queue: Queue,
) -> None:
    await queue.hold_up()
    assert await queue.first() == (JobState.PAUSED, Requested.RUN)
    assert await queue.next() == "second"
    await queue.end(await queue.exchange.begin_attempt("second"))
    assert await queue.next() == "first"
    await queue.hold_up()
    assert await queue.next() == "third"
    await queue.request(Requested.RUN)  # somebody has mended it
    assert await queue.next() == "first"


async def test_jobs_that_are_all_held_up_are_tried_in_turn(queue: Queue) -> None:
    tried: list[str] = []
    for _ in range(7):
        tried.append(await queue.next())
        await queue.hold_up(tried[-1])
    assert tried == [*["first", "second", "third"] * 2, "first"]


async def test_a_paused_job_is_cancelled_at_once_and_nothing_but_its_record_is_left(
    queue: Queue, client: Redis
) -> None:
    attempt = await queue.work()
    await queue.exchange.ask(a_request(job_id="first"))
    await queue.request(Requested.PAUSE)
    await queue.pause(attempt)
    await queue.request(Requested.CANCEL)
    assert await queue.first() == (JobState.CANCELLED, Requested.CANCEL)
    assert await queue.next() == "second"
    assert (await queue.exchange.backlog(JOBS)).entries == 2
    assert client.keys("weir:*first*") == [b"weir:job:first"]
    with pytest.raises(Fenced, match="ended"):
        await queue.pause(attempt)


async def test_a_learner_that_has_lost_its_role_makes_no_other_job_active(
    queue: Queue, open_exchange: OpenExchange
) -> None:
    lease = await queue.exchange.renew_lease()
    attempt = await queue.work()
    async with open_exchange("learner-2") as heir:
        await heir.renew_lease(lease)
        await Queue(heir).work("second")
        with pytest.raises(Fenced, match="taken over"):
            await queue.exchange.activate(an_active_job("first", attempt))
    assert await queue.exchange.active() == an_active_job("second")


async def work_until_the_queue_is_empty(learner: Learner) -> None:
    async def is_empty() -> bool:
        return not (await learner.exchange.backlog(JOBS)).entries

    async with learner.attempting() as attempt:
        await until(is_empty)
        learner.service.stop()
        await attempt


async def test_a_job_that_cannot_be_read_makes_way_and_can_be_read_later(
    exchange: Exchange, client: Redis, learner: Learner
) -> None:
    await activate(exchange)
    await exchange.ask(a_request())
    client.hset(streams.job_key("job"), "new_field", "1")
    await work_until_the_queue_is_empty(learner)
    assert await exchange.active() is None
    assert client.keys("weir:*job*:*") == [b"weir:job:job"]
    client.hdel(streams.job_key("job"), "new_field")
    record = await record_of(exchange)
    assert (record.state, record.recipe) == (JobState.FAILED, a_recipe())
    assert "new_field: unknown key" in str(record.error)


@pytest.mark.parametrize("damage", [{"attempt": '"many"'}, {"state": '"succeeded"'}])
async def test_a_job_that_cannot_even_be_ended_makes_way_too(
    exchange: Exchange, client: Redis, learner: Learner, damage: dict[str, str]
) -> None:
    await exchange.submit(a_job_record())
    client.hset(streams.job_key("job"), mapping={"new_field": "1", **damage})
    await work_until_the_queue_is_empty(learner)
    assert await exchange.next_job(wait_s=0.01) is None
