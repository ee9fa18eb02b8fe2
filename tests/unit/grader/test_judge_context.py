"""What no judge could read is not sent to it."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Ungradable

from services.grader.tools import Tools
from tests.unit.grader.asked import verify
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    breaks_off,
    hangs,
    replies,
    settings_for,
    watched,
)

pytestmark = pytest.mark.anyio


async def test_too_long_is_counted_by_the_server_and_not_sent(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    server.max_model_len, server.tokens = 5000, 3001
    async with watched(settings_for(server)) as judge:
        for text in ("a", "b"):
            over = await verify(judge, tools, text * 4000, max_tokens=2000)
            assert over == Ungradable(reason="over_judge_context")
    assert server.asked == []
    assert server.num_tokenized == 2
    [record] = [each for each in caplog.records if "longer than" in each.message]
    numbers = [record.__dict__[name] for name in ("tokens", "max_tokens", "context")]
    assert numbers == [3001, 2000, 5000]


@pytest.mark.parametrize(
    ("length", "tokens", "is_sent", "num_tokenized"),
    [
        (100, 9999, True, 0),  # a token is at least a byte: no need to ask
        (4000, 3000, True, 1),
        (4000, None, True, 1),  # some 6000 bytes are 2400 tokens, if nobody counts them
        (7000, None, False, 1),
    ],
)
async def test_what_may_be_too_long_is_measured(
    length: int, tokens: int | None, is_sent: bool, num_tokenized: int, tools: Tools
) -> None:
    async with (
        ScriptedServer(max_model_len=5000, tokens=tokens) as server,
        watched(settings_for(server)) as judge,
    ):
        await verify(judge, tools, "x" * length, max_tokens=2000)
    assert bool(server.asked) is is_sent
    assert server.num_tokenized == num_tokenized


@pytest.mark.parametrize(
    "counts",
    [
        replies(b"not implemented", 501),
        replies(b"bad gateway", 502),
        replies(b"slow down", 429),
        replies(b'{"count": "many"}'),
        replies(b'{"count": true}'),
        breaks_off(b""),
        hangs,
    ],
)
@pytest.mark.parametrize(("length", "is_sent"), [(4000, True), (7000, False)])
async def test_a_server_that_does_not_count_does_not_fail_the_question(
    counts: Behaviour, length: int, is_sent: bool, tools: Tools
) -> None:
    async with (
        ScriptedServer(max_model_len=5000, counts=counts) as server,
        watched(settings_for(server, timeout_s=0.3)) as judge,
    ):
        found = await verify(judge, tools, "x" * length, max_tokens=2000)
    assert isinstance(found, Graded) if is_sent else found.reason == "over_judge_context"
    assert bool(server.asked) is is_sent


async def test_the_deployment_s_context_comes_before_the_server_s(
    server: ScriptedServer, tools: Tools
) -> None:
    server.tokens = 2500
    async with watched(settings_for(server, context_tokens=4000)) as judge:
        over = await verify(judge, tools, "x" * 1000, max_tokens=2000)
    assert over == Ungradable(reason="over_judge_context")


async def test_nothing_is_checked_where_nobody_knows_the_context(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    server.max_model_len = None
    async with watched(settings_for(server)) as judge:
        assert isinstance(await verify(judge, tools, "x" * 200_000), Graded)
    assert "set WEIR_JUDGE_CONTEXT" in caplog.text
