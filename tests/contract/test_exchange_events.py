"""Events of a job: the newest are kept, each is recorded once, none is refused for a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from protocol import streams
from protocol.exchange import Exchange, news
from protocol.frames import encode
from protocol.streams import EVENTS

from services.learner.job.report import Reporter
from tests.builders import an_event
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(news, "MAX_EVENTS", 50)
    return 50


async def ids_of(exchange: Exchange) -> list[str]:
    return [event.id for _, event in await exchange.events("job")]


def remembered(server: Server) -> set[str]:
    with server.client() as client:
        found: Any = client.smembers(streams.event_ids_key("job"))
    return {each.decode() for each in found}


async def test_the_newest_events_are_kept_and_only_their_ids(
    exchange: Exchange, server: Server, kept: int
) -> None:
    for number in range(3 * kept):
        assert await exchange.record_event(an_event(f"step:{number}"))
    newest = [f"step:{number}" for number in range(2 * kept, 3 * kept)]
    assert await ids_of(exchange) == newest
    assert remembered(server) == set(newest)


async def test_whatever_is_kept_is_recorded_once(exchange: Exchange, kept: int) -> None:
    for number in range(2 * kept):
        await exchange.record_event(an_event(f"step:{number}"))
    there = await ids_of(exchange)
    for event_id in there:
        assert not await exchange.record_event(an_event(event_id))
    assert await ids_of(exchange) == there


async def test_a_longer_story_of_an_earlier_release_is_shortened_little_by_little(
    exchange: Exchange, server: Server, kept: int
) -> None:
    with server.client() as client:
        for number in range(4 * kept):
            fields: Any = encode(an_event(f"old:{number}"))
            client.xadd(EVENTS.key("job"), fields)
            client.sadd(streams.event_ids_key("job"), f"old:{number}")
    assert not await exchange.record_event(an_event(f"old:{4 * kept - 1}"))
    await exchange.record_event(an_event("new:0"))
    assert kept < len(await ids_of(exchange)) < 4 * kept
    for number in range(1, kept // 2):
        assert await exchange.record_event(an_event(f"new:{number}"))
    there = await ids_of(exchange)
    assert there[-1] == f"new:{kept // 2 - 1}"
    assert len(there) == kept
    assert remembered(server) == set(there)
    assert not await exchange.record_event(an_event(there[0]))


async def test_an_event_that_cannot_be_read_gives_way_too(
    exchange: Exchange, server: Server, kept: int
) -> None:
    with server.client() as client:
        client.xadd(EVENTS.key("job"), {"header": "no JSON"})
    for number in range(kept):
        assert await exchange.record_event(an_event(f"step:{number}"))
    assert len(await ids_of(exchange)) == kept


REPORTS: list[Callable[[Reporter, dict[str, Any]], Any]] = [
    lambda reporter, data: reporter.step(1, {"samples": 1, "tokens": 1, **data}),
    lambda reporter, data: reporter.pretrain_step(1, {"value_loss": math.nan, **data}),
    lambda reporter, data: reporter.evaluation({"step": 1, **data}, {}),
    lambda reporter, data: reporter.say("said", "text", data=data),
]


@pytest.mark.parametrize("report", REPORTS)
async def test_what_json_cannot_hold_is_null_or_a_text_in_an_event(
    exchange: Exchange, report: Callable[[Reporter, dict[str, Any]], Any]
) -> None:
    awkward = {
        "grad_norm": math.nan,
        "nested": {"losses": [math.inf, 0.5], 7: (-math.inf,)},
        "numpy": np.float32(0.5),
        "flag": True,
        "count": 3,
        "nothing": None,
        "object": {1},
    }
    await report(Reporter(exchange, "job"), awkward)
    ((_, event),) = await exchange.events("job")
    data: Any = event.data
    assert {name: data.get("evaluation", data)[name] for name in awkward} == {
        "grad_norm": None,
        "nested": {"losses": [None, 0.5], "7": [None]},
        "numpy": 0.5,
        "flag": True,
        "count": 3,
        "nothing": None,
        "object": "{1}",
    }


async def test_an_event_of_another_release_keeps_nobody_from_the_others(
    exchange: Exchange, server: Server
) -> None:
    await exchange.record_event(an_event("first"))
    with server.client() as client:
        client.xadd(EVENTS.key("job"), {"header": b'{"type": "JobEvent", "version": 9}'})
    await exchange.record_event(an_event("last"))
    assert await ids_of(exchange) == ["first", "last"]
    assert [event.id for _, event in await exchange.events_back("job")] == ["last", "first"]
