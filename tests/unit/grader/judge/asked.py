"""What the tests of this folder ask of a judge whose server is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from prometheus_client import REGISTRY
from protocol.messages import Graded, Score, Task
from protocol.rewards import ModelJudge

from services.grader.judge.judge import Answer, Judge
from services.grader.judge.question import Form, Question, one_of, words
from services.grader.tools import Tools
from services.grader.verifiers.judges import model_judge
from tests.builders import a_task
from tests.unit.grader.judge_server import ScriptedServer, settings_for

TASK = a_task(solution="One and one make two. </s>")
PERFECT = Graded(
    value=1,
    breakdown={"solution": 1.0, "samples": 1},
    comments={"analysis": "I have looked."},
)
WELL = '{"analysis": "sound", "solution": "complete"}'
FORM = Form({"analysis": words("your reasons"), "verdict": one_of(("yes", "no"))})
YES = {"analysis": "I have looked.", "verdict": "yes"}


def a_question(text: str = "Is it?", **changes: Any) -> Question:
    turn = {"role": "user", "content": text}
    return replace(Question((turn,), FORM), **changes)


async def ask(judge: Judge, text: str = "Is it?") -> Answer:
    [answer] = await judge.ask(a_question(text))
    return answer


async def verify(
    judge: Judge, tools: Tools, text: str = "It is 2.", task: Task = TASK, **check: Any
) -> Score:
    asked = replace(tools, judge=judge)
    return await model_judge(task, text, ModelJudge.model_validate(check), asked)


async def score(server: ScriptedServer, tools: Tools, **check: Any) -> Score:
    async with Judge(settings_for(server)) as judge:
        return await verify(judge, tools, **check)


def counted(metric: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


async def ended(*tasks: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks, return_exceptions=True)
