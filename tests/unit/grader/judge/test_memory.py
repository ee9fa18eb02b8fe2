"""A verdict is paid for once: it is remembered, and shared by those who ask at one time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from protocol.messages import Ungradable

from services.grader.judge.form import Form, one_of, words
from services.grader.judge.judge import Judge
from tests.unit.grader.judge.asked import YES, a_question, counted
from tests.unit.grader.judge_server import (
    CONTEXT,
    MODEL,
    Memory,
    ScriptedServer,
    grades,
    hangs,
    replies,
    says,
    settings_for,
    until,
)

pytestmark = pytest.mark.anyio

QUESTION = a_question()
IDENTITY = ("http://h/v1", "judge", "/models/judge", CONTEXT)


def digest_at(server: ScriptedServer) -> str:
    return QUESTION.digest((server.url, MODEL, server.root, str(server.max_model_len)))


def results() -> list[float]:
    return [counted("weir_judge_cache_total", result=name) for name in ("hit", "miss", "shared")]


def moved(before: list[float]) -> list[float]:
    return [now - then for now, then in zip(results(), before, strict=True)]


async def test_a_verdict_is_remembered(server: ScriptedServer) -> None:
    memory, before = Memory(), results()
    for _ in range(2):
        async with Judge(settings_for(server), memory) as judge:
            assert await judge.ask(QUESTION) == [YES]
    assert len(server.asked) == 1
    assert list(memory.verdicts) == [digest_at(server)]
    assert moved(before) == [1, 1, 0]


async def test_a_verdict_is_remembered_for_the_model_that_gave_it(server: ScriptedServer) -> None:
    memory = Memory()
    server.script = [hangs, grades()]
    async with Judge(settings_for(server), memory) as judge:
        call = asyncio.create_task(judge.ask(QUESTION))
        await until(lambda: server.asked)
        await server.go_away()
        await until(lambda: judge.why_down not in {"", "starting"})
        server.root = "/models/another"
        await server.come()
        assert await call == [YES]
    assert list(memory.verdicts) == [digest_at(server)]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": ({"role": "user", "content": "Is it so?"},)},
        {"form": Form({"verdict": one_of(("yes", "no")), "analysis": words("your reasons")})},
        {"form": Form({"analysis": words("your reasons"), "verdict": one_of(("yes", "perhaps"))})},
        {"reasoning_effort": "high"},
        {"max_tokens": 100},
        {"temperature": 0.5},
        {"seed": 1},
    ],
)
def test_whatever_decides_the_verdict_makes_another_digest(change: dict[str, Any]) -> None:
    assert replace(QUESTION, **change).digest(IDENTITY) != QUESTION.digest(IDENTITY)
    assert replace(QUESTION).digest(IDENTITY) == QUESTION.digest(IDENTITY)
    for place in range(len(IDENTITY)):
        another = [None if at == place else value for at, value in enumerate(IDENTITY)]
        assert QUESTION.digest(another) != QUESTION.digest(IDENTITY)


@pytest.mark.parametrize("behaviour", [says(None), replies(b"", 400)])
async def test_a_failure_is_not_remembered(behaviour: Any, server: ScriptedServer) -> None:
    server.script = [behaviour]
    memory = Memory()
    async with Judge(settings_for(server), memory) as judge:
        [answer] = await judge.ask(QUESTION)
        assert isinstance(answer, Ungradable)
        assert memory.verdicts == {}
        server.script = [grades()]
        assert await judge.ask(QUESTION) == [YES]


@pytest.mark.parametrize("stored", ["", '{"analysis": "", "verdict": "maybe"}'])
async def test_what_was_spoilt_is_asked_anew(stored: str, server: ScriptedServer) -> None:
    memory = Memory({digest_at(server): stored})
    async with Judge(settings_for(server), memory) as judge:
        assert await judge.ask(QUESTION) == [YES]
    assert json.loads(memory.verdicts[digest_at(server)]) == YES


async def test_equal_questions_at_one_time_are_one_call(server: ScriptedServer) -> None:
    server.script = [grades(after_s=0.1)]
    before = results()
    async with Judge(settings_for(server)) as judge:
        answers = await asyncio.gather(*(judge.ask(QUESTION) for _ in range(8)))
    assert answers == [[YES]] * 8
    assert len(server.asked) == 1
    assert moved(before) == [0, 1, 7]
