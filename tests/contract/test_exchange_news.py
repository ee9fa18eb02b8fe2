"""What is announced and told of a job reaches those who wait for it."""

from __future__ import annotations

import asyncio
import time

import pytest
from protocol import streams
from protocol.exchange import Exchange, Fenced

from tests.builders import a_policy, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import begin
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_rollouts_follow_the_last_announcement_even_to_a_lower_number(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    assert await exchange.newest_policy("job") is None
    for number in (0, 1, 2):
        await exchange.announce(a_policy(number))
    await exchange.begin_attempt("job")
    await exchange.announce(a_policy(1, attempt=2))
    assert await exchange.newest_policy("job") == a_policy(1, attempt=2)
    with pytest.raises(Fenced):
        await exchange.announce(a_policy(3, attempt=1))
    assert await exchange.newest_policy("job") == a_policy(1, attempt=2)


async def test_an_announcement_that_is_sent_again_is_made_once_and_replaces_the_last(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    for number in (0, 0, 1, 1, 0):
        await exchange.announce(a_policy(number))
    with server.client() as client:
        stream = client.xinfo_stream(streams.POLICY.key("job"))
    assert (stream["entries-added"], stream["length"]) == (3, 1)


async def test_an_event_is_recorded_once(exchange: Exchange) -> None:
    event = an_event(data={"loss": 0.5, "nested": {"tokens": [1, 2]}})
    assert await exchange.record_event(event)
    assert not await exchange.record_event(event)
    assert [found for _, found in await exchange.events("job")] == [event]


async def test_events_are_read_on_from_where_the_reader_is(exchange: Exchange) -> None:
    for number in range(5):
        await exchange.record_event(an_event(f"event-{number}"))
    first = await exchange.events("job", count=2)
    rest = await exchange.events("job", after=first[-1][0])
    assert [event.id for _, event in first + rest] == [f"event-{n}" for n in range(5)]
    assert await exchange.events("job", after=rest[-1][0]) == []
    assert await exchange.events("nobody") == []


async def test_a_reader_of_events_waits_for_the_next_one(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    assert await exchange.events("job", wait_s=0.01) == []
    assert await asyncio.wait_for(exchange.events("job", wait_s=0), 5) == []
    async with open_exchange("gateway") as gateway:
        waiting = asyncio.create_task(gateway.events("job", wait_s=10))
        await asyncio.sleep(0.05)
        await exchange.record_event(an_event())
        ((_, event),) = await asyncio.wait_for(waiting, 8)
    assert event == an_event()


async def test_many_readers_of_events_wait_at_once(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("gateway") as gateway:
        waiting = [asyncio.create_task(gateway.events("job", wait_s=10)) for _ in range(150)]
        await asyncio.sleep(0.5)
        await exchange.record_event(an_event())
        found = await asyncio.wait_for(asyncio.gather(*waiting), 8)
    assert all([event for _, event in events] == [an_event()] for events in found)


async def test_events_that_cannot_be_read_hide_none_of_those_beyond_them(
    exchange: Exchange, server: Server
) -> None:
    await exchange.record_event(an_event("first"))
    leave_unreadable(server, 450)
    for name in ("second", "last"):
        await exchange.record_event(an_event(name))
    leave_unreadable(server, 250)
    places = {event.id: place for place, event in await exchange.events("job")}
    assert list(places) == ["first", "second", "last"]
    assert list(dict(await exchange.events_back("job"))) == list(places.values())[::-1]
    for count in (1, 2, 100):
        forward = await exchange.events("job", after=places["first"], count=count)
        assert [event.id for _, event in forward] == ["second", "last"][:count]
        back = await exchange.events_back("job", before=places["second"], count=count)
        assert [event.id for _, event in back] == ["first"]
    assert await exchange.events("job", after=places["last"], count=1) == []
    assert await exchange.events_back("job", before=places["first"], count=1) == []


async def test_a_reader_waits_behind_events_that_cannot_be_read_for_the_next_one(
    exchange: Exchange, server: Server, open_exchange: OpenExchange
) -> None:
    leave_unreadable(server, 3)
    began = time.monotonic()
    assert await exchange.events("job", wait_s=0.2) == []
    assert time.monotonic() - began > 0.1
    async with open_exchange("gateway") as gateway:
        waiting = asyncio.create_task(gateway.events("job", wait_s=10))
        await asyncio.sleep(0.05)
        leave_unreadable(server, 1)
        await exchange.record_event(an_event())
        ((_, event),) = await asyncio.wait_for(waiting, 8)
    assert event == an_event()


async def test_a_reader_does_not_hold_back_an_event_to_wait_for_more(
    exchange: Exchange, server: Server
) -> None:
    await exchange.record_event(an_event())
    leave_unreadable(server, 1)
    ((_, event),) = await asyncio.wait_for(exchange.events("job", count=2, wait_s=10), 8)
    assert event == an_event()


def leave_unreadable(server: Server, number: int) -> None:
    """Events as another release may leave them."""
    with server.client() as client, client.pipeline() as pipe:
        for _ in range(number):
            pipe.xadd(streams.EVENTS.key("job"), {"header": b'{"type": "JobEvent", "version": 9}'})
        pipe.execute()
