"""What a judge has said is remembered, up to a bound; what was used last stays longest."""

from __future__ import annotations

import pytest
from protocol import streams
from protocol.exchange import Exchange

from services.grader.judge.cache import VerdictCache
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


OVERHEAD = 256


async def recalled(exchange: Exchange, *digests: str) -> list[str | None]:
    return [await VerdictCache(exchange, 0).recall(digest) for digest in digests]


async def test_a_verdict_is_recalled_as_it_was(exchange: Exchange) -> None:
    assert await VerdictCache(exchange, 0).recall("a") is None
    await VerdictCache(exchange, 1000).remember("a", '{"level": "größer"}')
    assert await VerdictCache(exchange, 0).recall("a") == '{"level": "größer"}'
    await VerdictCache(exchange, 1000).remember("a", "{}")
    assert await VerdictCache(exchange, 0).recall("a") == "{}"


async def test_those_used_longest_ago_make_room(exchange: Exchange) -> None:
    for digest in "abc":
        await VerdictCache(exchange, 30 + 3 * OVERHEAD).remember(digest, 10 * digest)
    assert await VerdictCache(exchange, 0).recall("a") == 10 * "a"  # which makes b the oldest
    await VerdictCache(exchange, 30 + 3 * OVERHEAD).remember("d", 15 * "d")
    assert await recalled(exchange, *"abcd") == [10 * "a", None, None, 15 * "d"]


async def test_the_bound_counts_bytes_and_survives_replacement(
    exchange: Exchange, server: Server
) -> None:
    for size in (10, 500, 3):
        await VerdictCache(exchange, 1000).remember("a", size * "x")
    await VerdictCache(exchange, 1000).remember("b", 40 * "ö")
    assert int(await exchange.writer.get(streams.VERDICT_BYTES) or 0) == 3 + 80 + 2 * OVERHEAD
    await VerdictCache(exchange, 90 + OVERHEAD).remember("c", 20 * "c")
    assert await recalled(exchange, *"abc") == [None, None, 20 * "c"]
    assert int(await exchange.writer.get(streams.VERDICT_BYTES) or 0) == 20 + OVERHEAD


async def test_a_full_memory_is_no_reason_to_wait(exchange: Exchange) -> None:
    await VerdictCache(exchange, 1000).remember("before", "{}")
    await exchange.writer.config_set("maxmemory", 1)
    try:
        await VerdictCache(exchange, 1000).remember("a", "{}")
        assert await recalled(exchange, "a", "before") == [None, "{}"]
    finally:
        await exchange.writer.config_set("maxmemory", 0)
