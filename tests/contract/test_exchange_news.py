"""What is announced and told of a job reaches those who wait for it, and is told once."""

from __future__ import annotations

import asyncio

import pytest
from protocol import streams
from protocol.exchange import Exchange, news
from protocol.streams import EVENTS

from tests.builders import a_policy, an_event
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import begin
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


def leave_unreadable(server: Server, number: int) -> None:
    """Events as another release may leave them."""
    with server.client() as client, client.pipeline() as pipe:
        for _ in range(number):
            pipe.xadd(EVENTS.key("job"), {"header": b'{"type": "JobEvent", "version": 9}'})
        pipe.execute()


async def test_the_last_announcement_counts_and_one_that_is_sent_again_is_made_once(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    assert await exchange.newest_policy("job") is None
    for number in (0, 0, 1, 1, 0):
        await exchange.announce(a_policy(number))
    assert await exchange.newest_policy("job") == a_policy(0)
    with server.client() as client:
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
        while (await exchange.writer.info("clients"))["blocked_clients"] < 64:
            await asyncio.sleep(0.01)
        assert (await exchange.writer.info("clients"))["connected_clients"] < 80
        await exchange.record_event(an_event())
        found = await asyncio.gather(*waiting)
    assert all([event for _, event in events] == [an_event()] for events in found)


async def test_events_are_read_from_any_place_whatever_between_them_cannot_be_read(
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
    assert await exchange.events("job", after=places["last"], wait_s=0.05) == []
    assert await exchange.events_back("job", before=places["first"], count=1) == []
    (last,) = await exchange.events("job", after=places["second"], count=2, wait_s=3600)
    assert last == (places["last"], an_event("last"))


async def test_an_event_is_recorded_once_and_the_newest_are_kept_with_their_ids(
    exchange: Exchange, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "MAX_EVENTS", 50)
    leave_unreadable(server, 2)  # which give way, too
    for number in range(100):
        assert await exchange.record_event(an_event(f"step:{number}"))
    newest = [f"step:{number}" for number in range(50, 100)]
    for event_id in newest:
        assert not await exchange.record_event(an_event(event_id))
    assert [event.id for _, event in await exchange.events("job")] == newest
    with server.client() as client:
        kept = client.smembers(streams.event_ids_key("job"))
    assert kept == {event_id.encode() for event_id in newest}
