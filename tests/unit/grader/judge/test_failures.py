"""What a verifier hears when the judge fails, or answers something else."""

from __future__ import annotations

import logging

import pytest
from protocol.messages import Graded, Ungradable

from services.grader.tools import Tools
from tests.unit.grader.judge.asked import PERFECT, WELL, counted, score
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    breaks_off,
    grades,
    hangs,
    replies,
    says,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BEST = grades()
PASSING = [replies(b"engine died", 500), breaks_off(b""), replies(b"<html>It works!</html>")]


@pytest.mark.parametrize(
    ("failure", "times"),
    [*((failure, 1) for failure in (*PASSING, hangs)), (PASSING[0], 3)],  # then a self-test
)
async def test_what_fails_in_passing_is_tried_again(
    failure: Behaviour, times: int, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [*[failure] * times, BEST]
    assert await score(server, tools, 0.3 if failure is hangs else 5.0) == PERFECT
    seeds = [body["seed"] for body in server.asked]
    assert len(seeds) == len(set(seeds)) == times + 1


@pytest.mark.parametrize("failure", [*PASSING, hangs])
async def test_what_always_fails_has_no_score(
    failure: Behaviour, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [failure]
    reason, timeout_s = ("judge_timeout", 0.3) if failure is hangs else ("judge_failed", 5.0)
    assert await score(server, tools, timeout_s) == Ungradable(reason=reason)
    assert len(server.asked) == 4  # three attempts, and one after the self-test was passed
    assert server.num_exams == 6


NO_VERDICT = [
    None,
    "",
    {"solution": "complete"},
    "complete",
    WELL + " and so on",
    "```json\n" + WELL + "\n```",
    '{"analysis": "sound"}',
    '{"analysis": "sound", "solution": "complete", "score": 1}',
    '{"analysis": "sound", "solution": "wrong", "solution": "complete"}',
    '{"analysis": "sound", "solution": "Complete"}',
    '{"analysis": "sound", "solution": "wrong|complete"}',
    '{"analysis": "sound", "solution": 1.0}',
    '{"analysis": NaN, "solution": "complete"}',
    '{"analysis": 1e999, "solution": "complete"}',
    '{"analysis": %s, "solution": "complete"}' % ("9" * 5000),
    '{"a":' * 50_000,
]


@pytest.mark.parametrize(
    ("content", "finish_reason"),
    [
        *((content, "stop") for content in NO_VERDICT),
        *((WELL, reason) for reason in ("length", "content_filter", "tool_calls", None)),
    ],
)
async def test_what_is_no_form_filled_in_to_its_end_is_no_verdict(
    content: object, finish_reason: str | None, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(content, finish_reason)]
    assert await score(server, tools) == Ungradable(reason="no_verdict")
    assert len({body["seed"] for body in server.asked}) == len(server.asked) == 3
    assert server.num_exams == 2, "what the model says is no sign of a judge that is down"


async def test_only_a_model_that_gave_no_verdict_is_asked_with_chance(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [replies(b"", 500), says(None), BEST]
    await score(server, tools)
    assert [body["temperature"] for body in server.asked] == [0, 0, 0.7]
    server.asked.clear()
    server.script = [says(None), BEST]
    await score(server, tools, temperature=1.5)
    assert [body["temperature"] for body in server.asked] == [1.5, 1.5]


async def test_a_model_that_thought_too_long_is_asked_to_think_less(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(None), says(None, "length"), BEST]
    assert isinstance(await score(server, tools, reasoning_effort="high"), Graded)
    assert [body["reasoning_effort"] for body in server.asked] == ["high", "high", "low"]


async def test_a_refusal_is_loud_and_not_repeated(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    refused = counted("weir_judge_calls_total", outcome="refused")
    server.script = [replies(b'{"error": "max_tokens is too large"} ' + b"x" * 5000, 400)]
    with caplog.at_level(logging.ERROR):
        assert await score(server, tools) == Ungradable(reason="judge_refused")
    assert len(server.asked) == 1
    [record] = [each for each in caplog.records if each.message == "the judge refused a request"]
    shown = record.__dict__["answer"]
    assert ' answers 400: {"error": "max_tokens is too large"}' in shown
    assert len(shown) < 500
    assert counted("weir_judge_calls_total", outcome="refused") == refused + 1
