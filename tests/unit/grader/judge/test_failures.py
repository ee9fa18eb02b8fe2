"""What a verifier hears when the judge fails, or answers something else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from protocol.messages import Score, Ungradable

from services.grader.tools import Tools
from tests.unit.grader.judge.asked import PERFECT, WELL, counted, score
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    breaks_off,
    grades,
    replies,
    says,
)

pytestmark = pytest.mark.anyio

BEST, DEAD, DUMB = grades(), replies(b"engine died", 500), says(None)
FAILED, REFUSED, NO_VERDICT = (
    Ungradable(reason=reason) for reason in ("judge_failed", "judge_refused", "no_verdict")
)


@pytest.mark.parametrize(
    ("script", "found", "num_asked", "num_exams"),
    [
        ([DEAD, BEST], PERFECT, 2, 2),
        ([breaks_off(b""), BEST], PERFECT, 2, 2),
        ([DUMB, BEST], PERFECT, 2, 2),
        ([DEAD, DEAD, DEAD, BEST], PERFECT, 4, 4),  # one more after a self-test that was passed
        ([DEAD], FAILED, 4, 6),
        ([DUMB], NO_VERDICT, 3, 2),  # what the model says is no sign of a judge that is down
        ([replies(b"too large", 400)], REFUSED, 1, 2),
    ],
)
async def test_what_may_pass_is_tried_again_and_what_stays_has_no_score(
    script: list[Behaviour],
    found: Score,
    num_asked: int,
    num_exams: int,
    server: ScriptedServer,
    tools: Tools,
) -> None:
    server.script = script
    assert await score(server, tools) == found
    assert len({body["seed"] for body in server.asked}) == len(server.asked) == num_asked
    assert server.num_exams == num_exams


@pytest.mark.parametrize(
    ("content", "finish_reason"),
    [
        *((WELL, reason) for reason in ("length", "content_filter", None)),
        *(
            (content, "stop")
            for content in (
                {"solution": "complete"},
                WELL + " and so on",
                "```json\n" + WELL + "\n```",
                '{"analysis": "sound"}',
                '{"analysis": "sound", "solution": "complete", "score": 1}',
                '{"analysis": "sound", "solution": "wrong", "solution": "complete"}',
                '{"analysis": "sound", "solution": "wrong|complete"}',
                '{"analysis": "sound", "solution": 1.0}',
                '{"analysis": NaN, "solution": "complete"}',
                '{"analysis": %s, "solution": "complete"}' % ("9" * 5000),
                '{"a":' * 50_000,
            )
        ),
    ],
)
async def test_what_is_no_form_filled_in_to_its_end_is_no_verdict(
    content: object, finish_reason: str | None, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(content, finish_reason)]
    assert await score(server, tools) == NO_VERDICT


@pytest.mark.parametrize(
    ("script", "check", "field", "sent"),
    [
        ([DEAD, DUMB, BEST], {}, "temperature", [0, 0, 0.7]),
        ([DUMB, BEST], {"temperature": 1.5}, "temperature", [1.5, 1.5]),
        (
            [DUMB, says(None, "length"), BEST],
            {"reasoning_effort": "high"},
            "reasoning_effort",
            ["high", "high", "low"],
        ),
    ],
)
async def test_a_model_that_gave_no_verdict_is_asked_with_chance_or_to_think_less(
    script: list[Behaviour],
    check: dict[str, Any],
    field: str,
    sent: list[object],
    server: ScriptedServer,
    tools: Tools,
) -> None:
    server.script = script
    await score(server, tools, **check)
    assert [body[field] for body in server.asked] == sent


async def test_a_refusal_is_loud_and_counted(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    refused = counted("weir_judge_calls_total", outcome="refused")
    server.script = [replies(b'{"error": "max_tokens is too large"} ' + b"x" * 5000, 400)]
    with caplog.at_level(logging.ERROR):
        await score(server, tools)
    [record] = [each for each in caplog.records if each.message == "the judge refused a request"]
    shown = record.__dict__["answer"]
    assert "max_tokens is too large" in shown
    assert len(shown) < 500
    assert counted("weir_judge_calls_total", outcome="refused") == refused + 1
