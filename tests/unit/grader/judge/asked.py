"""What verifiers of this folder's tests ask of a judge whose server is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from prometheus_client import REGISTRY
from protocol.messages import Graded, Score
from protocol.rewards import ModelJudge

from services.grader.judge.judge import Judge
from services.grader.tools import Tools
from services.grader.verifiers import model_judge
from tests.builders import a_task
from tests.unit.grader.judge_server import ScriptedServer, settings_for

TASK = a_task(solution="One and one make two.")
PERFECT = Graded(
    value=1,
    breakdown={"solution": 1.0, "samples": 1},
    comments={"analysis": "I have looked."},
)
WELL = '{"analysis": "sound", "solution": "complete"}'


async def verify(judge: Judge, tools: Tools, text: str = "It is 2.", **check: Any) -> Score:
    asked = replace(tools, judge=judge)
    async with asyncio.timeout(60):
        return await model_judge.verify(TASK, text, ModelJudge.model_validate(check), asked)


async def score(
    server: ScriptedServer, tools: Tools, timeout_s: float = 5.0, **check: Any
) -> Score:
    async with Judge(settings_for(server, timeout_s=timeout_s)) as judge:
        return await verify(judge, tools, **check)


def counted(metric: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


async def ended(*tasks: Awaitable[Any], within_s: float = 60) -> list[Any]:
    async with asyncio.timeout(within_s):
        return await asyncio.gather(*tasks, return_exceptions=True)
