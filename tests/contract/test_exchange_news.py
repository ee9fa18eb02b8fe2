"""What is announced and told of a job reaches those who wait for it, and is told once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Exchange, news
from protocol.streams import EVENTS

from tests.builders import a_policy, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import begin
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many events of a job are kept."""
    monkeypatch.setattr(news, "MAX_EVENTS", 50)
    return 50


def leave_unreadable(server: Server, number: int) -> None:
    """Events as another release may leave them."""
    with server.client() as client, client.pipeline() as pipe:
        for _ in range(number):
            pipe.xadd(EVENTS.key("job"), {"header": b'{"type": "JobEvent", "version": 9}'})
        pipe.execute()


async def ids_of(exchange: Exchange) -> list[str]:
    return [event.id for _, event in await exchange.events("job")]


def remembered(server: Server) -> set[str]:
    with server.client() as client:
        found: Any = client.smembers(streams.event_ids_key("job"))
    return {each.decode() for each in found}


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


async def test_an_announcement_that_is_sent_again_is_made_once_and_replaces_the_last(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    for number in (0, 0, 1, 1, 0):
        await exchange.announce(a_policy(number))
    with server.client() as client:
        stream = client.xinfo_stream(streams.POLICY.key("job"))
    assert (stream["entries-added"], stream["length"]) == (3, 1)


async def test_events_are_recorded_once_and_read_on_from_where_the_reader_is(
    exchange: Exchange,
) -> None:
    event = an_event("event-0", data={"loss": 0.5, "nested": {"tokens": [1, 2]}})
    assert await exchange.record_event(event)
    assert not await exchange.record_event(event)
    for number in range(1, 5):
        await exchange.record_event(an_event(f"event-{number}"))
    first = await exchange.events("job", count=2)
    rest = await exchange.events("job", after=first[-1][0])
    assert first[0][1] == event
    assert [event.id for _, event in first + rest] == [f"event-{n}" for n in range(5)]
    assert await exchange.events("job", after=rest[-1][0]) == []
    assert await exchange.events("nobody") == []
    assert await exchange.events("nobody", wait_s=0) == []


async def test_many_readers_of_events_wait_at_once_for_the_next_one(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("gateway") as gateway, asyncio.timeout(60):
        waiting = [asyncio.create_task(gateway.events("job", wait_s=20)) for _ in range(150)]
        while (await exchange.writer.info("clients"))["blocked_clients"] < 150:
            await asyncio.sleep(0.01)
        await exchange.record_event(an_event())
        found = await asyncio.gather(*waiting)
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


async def test_a_reader_waits_behind_events_that_cannot_be_read_but_holds_back_none_that_can(
    exchange: Exchange, server: Server, open_exchange: OpenExchange
) -> None:
    leave_unreadable(server, 3)
    assert await exchange.events("job", wait_s=0.05) == []
    async with open_exchange("gateway") as gateway:
        waiting = asyncio.create_task(gateway.events("job", wait_s=20))
        await asyncio.sleep(0.05)
        leave_unreadable(server, 1)
        await exchange.record_event(an_event())
        ((place, event),) = await waiting
        assert event == an_event()
        leave_unreadable(server, 1)
    assert await exchange.events("job", count=2, wait_s=3600) == [(place, event)]


async def test_the_newest_events_are_kept_and_recorded_once_and_only_their_ids(
    exchange: Exchange, server: Server, kept: int
) -> None:
    leave_unreadable(server, 2)  # which give way, too
    for number in range(2 * kept):
        assert await exchange.record_event(an_event(f"step:{number}"))
    newest = [f"step:{number}" for number in range(kept, 2 * kept)]
    assert await ids_of(exchange) == newest
    assert remembered(server) == set(newest)
    for event_id in newest:
        assert not await exchange.record_event(an_event(event_id))
    assert await ids_of(exchange) == newest
