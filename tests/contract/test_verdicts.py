"""What a judge has said is remembered, up to a bound; what was used last stays longest."""

from __future__ import annotations

import pytest
from protocol import streams
from protocol.exchange import Exchange

from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


OVERHEAD = 256


async def recalled(exchange: Exchange, *digests: str) -> list[str | None]:
    return [await exchange.recall_verdict(digest) for digest in digests]


async def test_a_verdict_is_recalled_as_it_was(exchange: Exchange) -> None:
    assert await exchange.recall_verdict("a") is None
    await exchange.remember_verdict("a", '{"level": "größer"}', 1000)
    assert await exchange.recall_verdict("a") == '{"level": "größer"}'
    await exchange.remember_verdict("a", "{}", 1000)
    assert await exchange.recall_verdict("a") == "{}"


async def test_those_used_longest_ago_make_room(exchange: Exchange) -> None:
    for digest in "abc":
        await exchange.remember_verdict(digest, 10 * digest, 30 + 3 * OVERHEAD)
    assert await exchange.recall_verdict("a") == 10 * "a"  # which makes b the oldest
    await exchange.remember_verdict("d", 15 * "d", 30 + 3 * OVERHEAD)
    assert await recalled(exchange, *"abcd") == [10 * "a", None, None, 15 * "d"]


async def test_the_bound_counts_bytes_and_survives_replacement(
    exchange: Exchange, server: Server
) -> None:
    for size in (10, 500, 3):
        await exchange.remember_verdict("a", size * "x", 1000)
    await exchange.remember_verdict("b", 40 * "ö", 1000)
    assert int(await exchange.writer.get(streams.VERDICT_BYTES) or 0) == 3 + 80 + 2 * OVERHEAD
    await exchange.remember_verdict("c", 20 * "c", 90 + OVERHEAD)
    assert await recalled(exchange, *"abc") == [None, None, 20 * "c"]
    assert int(await exchange.writer.get(streams.VERDICT_BYTES) or 0) == 20 + OVERHEAD


async def test_what_is_larger_than_the_bound_is_not_kept(exchange: Exchange) -> None:
    await exchange.remember_verdict("a", 101 * "x", 100 + OVERHEAD)
    assert await exchange.recall_verdict("a") is None
    assert int(await exchange.writer.get(streams.VERDICT_BYTES) or 0) == 0
    assert await exchange.writer.zcard(streams.VERDICT_USES) == 0


async def test_a_full_memory_is_no_reason_to_wait(exchange: Exchange) -> None:
    await exchange.remember_verdict("before", "{}", 1000)
    await exchange.writer.config_set("maxmemory", 1)
    try:
        await exchange.remember_verdict("a", "{}", 1000)
        assert await recalled(exchange, "a", "before") == [None, "{}"]
    finally:
        await exchange.writer.config_set("maxmemory", 0)
