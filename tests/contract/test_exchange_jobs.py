"""Jobs: what is written and told of them, once, and in whose name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Delivery, Exchange, Fenced, UnreadableRecord, news
from protocol.messages import Fault, JobState, Requested
from protocol.streams import EVENTS, GRADED, JOBS
from redis import Redis

from tests.builders import a_job_record, a_policy, a_request, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import (
    activate,
    an_active_job,
    begin,
    is_blocked,
    record_of,
    taken_up,
)


async def close(exchange: Exchange) -> None:
    await exchange.close_job(await taken_up(exchange), 1, state="failed")


WRITES_OF_AN_ATTEMPT: dict[str, Callable[[Exchange], Awaitable[object]]] = {
    "ask": lambda exchange: exchange.ask(a_request(number=9)),
    "take in": lambda exchange: exchange.ingest(
        Delivery(
            GRADED,
            "job",
            "1-0",
            "train:0",
            {},
        ),
        1,
    ),
    "announce": lambda exchange: exchange.announce(a_policy(3)),
    "update": lambda exchange: exchange.update_job("job", 1, step=5),
    "activate": lambda exchange: exchange.activate(an_active_job()),
    "pause": lambda exchange: exchange.pause_job("job", 1, "full", Fault.MACHINE),
    "close": close,
}


@pytest.mark.parametrize("name", WRITES_OF_AN_ATTEMPT)
async def test_an_attempt_that_was_superseded_writes_nothing(
    exchange: Exchange, client: Redis, name: str
) -> None:
    await begin(exchange)
    await exchange.begin_attempt("job")
    await exchange.activate(an_active_job(attempt=2))
    before = {key: client.dump(key) for key in client.scan_iter()}
    with pytest.raises(Fenced, match="attempt 1"):
        await WRITES_OF_AN_ATTEMPT[name](exchange)
    assert {key: client.dump(key) for key in client.scan_iter()} == before


async def test_an_ended_job_stays_as_it_is_unless_it_failed_and_is_revived(
    exchange: Exchange,
) -> None:
    attempt = await begin(exchange)
    await exchange.revive("job")
    assert (await exchange.backlog(JOBS)).entries == 1
    await exchange.close_job(await taken_up(exchange), attempt, state="succeeded", error="x")
    for name in ("ask", "update", "pause"):
        with pytest.raises(Fenced, match="ended"):
            await WRITES_OF_AN_ATTEMPT[name](exchange)
    await exchange.request_state("job", Requested.PAUSE)
    await exchange.revive("job")
    record = await record_of(exchange)
    assert (record.state, record.requested) == (JobState.SUCCEEDED, Requested.RUN)
    assert await exchange.pending_keys("job") == set()


async def test_a_job_that_no_worker_could_read_does_not_become_active(exchange: Exchange) -> None:
    nested: Any = 1
    for _ in range(195):  # the record itself can still be read
        nested = [nested]
    outcome = {"verifier": "my.oracle", "settings": {"a": nested}}
    with pytest.raises(ValueError, match="recursion limit"):
        await activate(exchange, reward={"outcome": outcome})
    assert await exchange.active() is None


async def test_a_submitted_record_is_stored_whole_and_once_and_wakes_the_learner(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    record = a_job_record(request={"model": "models/tiny", "seed": 3, "note": 'é "quoted"'})
    async with open_exchange("learner-2") as learner:
        waiting = asyncio.create_task(learner.next_job(wait_s=60))
        await is_blocked(exchange)
        assert await exchange.submit(record)
        delivery = await waiting
    assert delivery is not None
    assert delivery.job_id == "job"
    assert not await exchange.submit(a_job_record(created_at=1.0))
    assert (await exchange.backlog(JOBS)).entries == 1
    assert await exchange.job("job") == record
    assert await exchange.job("another") is None


@pytest.mark.parametrize(
    ("field", "stored"), [("request", r'{"suffix": "\ud800"}'), ("state", '"weird"')]
)
async def test_a_record_that_cannot_be_read_names_its_job_and_what_is_wrong(
    exchange: Exchange, client: Redis, field: str, stored: str
) -> None:
    await exchange.submit(a_job_record())
    await exchange.submit(a_job_record("other"))
    client.hset(streams.job_key("job"), field, stored)
    with pytest.raises(UnreadableRecord, match=f"job job: {field}: ") as it:
        await exchange.job("job")
    assert (it.value.id, it.value.state) == ("job", JobState.FAILED)
    assert await exchange.job("other") == a_job_record("other")
    await exchange.request_state("job", Requested.CANCEL)
    (record, _) = await exchange.records(["job", "nobody", "other"])
    assert record.state is JobState.CANCELLED


async def test_each_attempt_gets_the_next_number_and_is_counted(
    exchange: Exchange, client: Redis
) -> None:
    await exchange.submit(a_job_record(attempt=3, attempts_since_checkpoint=3))
    # as a record of an earlier release
    client.hdel(streams.job_key("job"), "failures")
    assert [await exchange.begin_attempt("job") for _ in range(2)] == [4, 5]
    record = await record_of(exchange)
    assert (record.attempt, record.attempts_since_checkpoint, record.failures) == (5, 5, 0)


async def test_an_attempt_at_no_job_or_an_ended_one_is_refused(exchange: Exchange) -> None:
    with pytest.raises(Fenced, match="ended"):
        await exchange.begin_attempt("nobody")
    await exchange.submit(a_job_record())
    await exchange.request_state("job", Requested.CANCEL)
    with pytest.raises(Fenced, match="ended"):
        await exchange.begin_attempt("job")
    record = await record_of(exchange)
    assert (record.state, record.attempt) == (JobState.CANCELLED, 0)
    assert record.finished_at is not None


async def test_a_running_job_keeps_its_state_until_the_learner_obeys(exchange: Exchange) -> None:
    attempt = await begin(exchange)
    await exchange.update_job("job", attempt, state="running", step=4)
    for requested in (Requested.PAUSE, Requested.RUN, Requested.CANCEL):
        await exchange.request_state("job", requested)
        record = await record_of(exchange)
        assert (record.state, record.step) == (JobState.RUNNING, 4)
        assert record.requested == requested
    for later in (Requested.PAUSE, Requested.RUN):  # who asked to cancel cannot change their mind
        await exchange.request_state("job", later)
        assert await exchange.requested_state("job") is Requested.CANCEL


async def test_a_closed_job_leaves_its_record_its_events_and_its_cost(
    exchange: Exchange, client: Redis
) -> None:
    attempt = await activate(exchange)
    await exchange.add_cost("job", {"core_seconds:learner": 1.0})
    await exchange.ask(a_request())
    await exchange.announce(a_policy())
    await exchange.record_event(an_event())
    delivery = await taken_up(exchange)
    await exchange.close_job(delivery, attempt, state="failed", error="no memory")
    record = await record_of(exchange)
    assert (record.state, str(record.error)) == (JobState.FAILED, "no memory")
    assert await exchange.next_job(wait_s=0) is None
    keys = {key.decode() for key in client.scan_iter()}
    assert keys == {
        streams.job_key("job"),
        streams.PREFIX + "job_index",
        JOBS.key(),
        EVENTS.key("job"),
        streams.event_ids_key("job"),
        streams.NEW_POLICY,
        streams.cost_key("job"),
    }


async def test_a_failed_job_is_queued_again_once_and_begins_with_fresh_streams(
    exchange: Exchange,
) -> None:
    attempt = await begin(exchange)
    await exchange.ask(a_request())
    await exchange.update_job("job", attempt, failures=2, step=7, started_at=3.5)
    delivery = await taken_up(exchange)
    await exchange.close_job(delivery, attempt, state="failed", error="no memory", finished_at=4.5)
    for _ in range(2):
        await exchange.revive("job")
    await exchange.close_job(delivery, attempt, state="failed")  # its first reply was lost
    assert await exchange.job("job") == a_job_record(attempt=1, step=7, started_at=3.5)
    again = await taken_up(exchange)
    assert (again.job_id, again.entry_id == delivery.entry_id) == ("job", False)
    assert (await exchange.backlog(JOBS)).entries == 1
    assert await exchange.begin_attempt("job") == 2
    assert await exchange.ask(a_request(attempt=2))
    await exchange.activate(an_active_job(attempt=2))
    await exchange.close_job(delivery, 2, state="failed")
    assert await exchange.active() == an_active_job(attempt=2)


# ---------------------------------------- what is announced and told of a job


def leave_unreadable(client: Redis, number: int) -> None:
    """Events as another release may leave them."""
    with client.pipeline() as pipe:
        for _ in range(number):
            pipe.xadd(EVENTS.key("job"), {"header": b'{"type": "JobEvent", "version": 9}'})
        pipe.execute()


async def test_the_last_announcement_counts_and_one_that_is_sent_again_is_made_once(
    exchange: Exchange, client: Redis
) -> None:
    await begin(exchange)
    assert await exchange.newest_policy("job") is None
    for number in (0, 0, 1, 1, 0):
        await exchange.announce(a_policy(number))
    assert await exchange.newest_policy("job") == a_policy(0)
    stream = client.xinfo_stream(streams.POLICY.key("job"))
    assert (stream["entries-added"], stream["length"]) == (3, 1)


async def test_an_announcement_ends_a_wait_also_one_that_begins_later_but_only_once(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "_NEWS_MS", 20_000)
    await begin(exchange)
    async with asyncio.timeout(15):
        await exchange.announce(a_policy(0))
        await exchange.wait_for_new(streams.NEW_POLICY)
        waiting = asyncio.create_task(exchange.wait_for_new(streams.NEW_POLICY))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await exchange.announce(a_policy(1))
        await waiting


async def test_many_readers_wait_for_the_next_event_on_a_bounded_number_of_connections(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("gateway") as gateway, asyncio.timeout(60):
        waiting = [asyncio.create_task(gateway.events("job", wait_s=20)) for _ in range(150)]
        await is_blocked(exchange, 64)
        assert (await exchange.writer.info("clients"))["connected_clients"] < 80
        await exchange.record_event(an_event())
        for task in waiting:
            assert [event for _, event in await task] == [an_event()]


async def test_events_are_read_from_any_place_whatever_between_them_cannot_be_read(
    exchange: Exchange, client: Redis
) -> None:
    await exchange.record_event(an_event("first"))
    leave_unreadable(client, 450)
    for name in ("second", "last"):
        await exchange.record_event(an_event(name))
    leave_unreadable(client, 250)
    places = {event.id: place for place, event in await exchange.events("job")}
    assert list(places) == ["first", "second", "last"]
    assert list(dict(await exchange.events_back("job"))) == list(places.values())[::-1]
    for count in (1, 2, 100):
        forward = await exchange.events("job", after=places["first"], count=count)
        assert [event.id for _, event in forward] == ["second", "last"][:count]
        back = await exchange.events_back("job", before=places["second"], count=count)
        assert [event.id for _, event in back] == ["first"]
    assert await exchange.events("job", after=places["last"], wait_s=0.05) == []
    assert await exchange.events_back("job", before=places["first"], count=1) == []
    (last,) = await exchange.events(
        "job",
        after=places["second"],
        count=2,
        wait_s=3600,
    )
    assert last == (places["last"], an_event("last"))


async def test_an_event_is_recorded_once_and_the_newest_are_kept_with_their_ids(
    exchange: Exchange, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "MAX_EVENTS", 50)
    leave_unreadable(client, 2)  # which give way, too
    for number in range(100):
        assert await exchange.record_event(an_event(f"step:{number}"))
    newest = [f"step:{number}" for number in range(50, 100)]
    for event_id in newest:
        assert not await exchange.record_event(an_event(event_id))
    assert [event.id for _, event in await exchange.events("job")] == newest
    ids = client.smembers(streams.event_ids_key("job"))
    assert ids == {event_id.encode() for event_id in newest}
