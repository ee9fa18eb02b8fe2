"""How long a training step waits for the judge after its last rollout.

A judge's server in a process of its own answers after log-normal times. Groups of responses arrive
while rollouts are generated and are graded by the code of the grader's worker. All times are
shortened by `SCALE`, but not the work of this machine, which therefore weighs more than in service.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import NormalDist, median
from typing import Any

from protocol.messages import ActiveJob, Graded, GradedGroup, RolloutGroup

from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.worker import grade_group
from tests.builders import a_group, a_recipe, a_request, a_task
from tests.unit.grader.judge_server import MODEL, ScriptedServer, grades

GROUPS, GROUP_SIZE = 128, 8
STEP_S, MEDIAN_S, P99_S = 60.0, 0.5, 5.0
SCALE = 0.25

_SIGMA = math.log(P99_S / MEDIAN_S) / NormalDist().inv_cdf(0.99)
_TEXT = "First we add one and one, as in group {0}, response {1}. So it is $\\boxed{{2}}$."


@dataclass(frozen=True)
class Ends:
    """When a step's last rollout came, and when its last grade was given; seconds, in full size."""

    rollout_s: float
    grade_s: float


def rows(steps: int) -> Iterator[tuple[str, str]]:
    """What a step waits for the judge: once its rollouts are there, and while others go on."""
    with _server() as url:
        ends = asyncio.run(_graded(url, steps))
    calls = f"{GROUPS * GROUP_SIZE:,} calls a step of {STEP_S:g} s to a judge (median "
    calls += f"{MEDIAN_S:g} s, p99 {P99_S:g} s): "
    after_s = median(end.grade_s - end.rollout_s for end in ends)
    alone_s = _latencies_alone()
    yield (
        f"{calls}from a step's last rollout to its last grade",
        f"{after_s:.1f} s, {after_s / STEP_S:.1%} of the step (latencies alone {alone_s:.1f} s)",
    )
    first, last = ends[0], ends[-1]
    longer_s = (last.grade_s - first.grade_s - last.rollout_s + first.rollout_s) / (steps - 1)
    yield (
        f"{calls}time per step, while rollouts go on (max_staleness 1), beyond that of rollouts",
        f"{longer_s:+.2f} s, {longer_s / STEP_S:+.1%} of the step",
    )


async def _graded(url: str, steps: int) -> list[Ends]:
    settings = JudgeSettings(url=url, model=MODEL, timeout_s=600)
    async with (
        Pool(1, warm_ups=[math_answer.WARM_UP]) as pool,
        Judge(settings) as judge,
    ):
        tools = Tools(pool, judge)
        await _step(tools, _groups(-1)[:1], [0.0], time.monotonic())  # connections, imports
        started = time.monotonic()
        each = (_step(tools, _groups(step), _arrivals(step), started) for step in range(steps))
        return await asyncio.gather(*each)


async def _step(
    tools: Tools, groups: Sequence[RolloutGroup], arrivals: Sequence[float], started: float
) -> Ends:
    recipe = a_recipe(
        reward={"process": {"verifier": "model_judge", "rubric": "holistic"}, "process_for": "all"}
    )
    job = ActiveJob(job_id="job", attempt=1, recipe=recipe)

    async def arriving(group: RolloutGroup, after_s: float) -> GradedGroup:
        await asyncio.sleep(started + SCALE * after_s - time.monotonic())
        return await grade_group(job, group, tools)

    graded = await asyncio.gather(*map(arriving, groups, arrivals))
    assert all(
        isinstance(grade.process, Graded) for group in graded for grade in group.grades or ()
    )
    return Ends(max(arrivals), (time.monotonic() - started) / SCALE)


def _groups(step: int) -> list[RolloutGroup]:
    task = a_task(solution="One and one make two.")
    return [
        a_group(
            a_request(number=number, task=task, group_size=GROUP_SIZE),
            texts=[_TEXT.format(f"{step}/{number}", index) for index in range(GROUP_SIZE)],
        )
        for number in range(GROUPS)
    ]


def _arrivals(step: int) -> list[float]:
    chance = random.Random(step)
    return sorted(STEP_S * step + chance.uniform(0, STEP_S) for _ in range(GROUPS))


def _latencies_alone(trials: int = 200) -> float:
    """What no grader could avoid: every call begins as its group arrives, and nothing waits."""
    exposed = []
    for seed in range(trials):
        chance, arrivals = random.Random(seed), _arrivals(seed)
        ends = [arrival + _latency(chance) for arrival in arrivals for _ in range(GROUP_SIZE)]
        exposed.append(max(ends) - max(arrivals))
    return median(exposed)


def _latency(chance: random.Random) -> float:
    return chance.lognormvariate(math.log(MEDIAN_S), _SIGMA)


@contextmanager
def _server() -> Iterator[str]:
    """A judge's server in a process of its own; gives its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(told: Connection) -> None:
    asyncio.run(_serve_forever(told))


async def _serve_forever(told: Connection) -> None:
    """Consumes calls; produces verdicts. Waits for: calls. Unblocked by: the end of the process."""
    chance = random.Random(0)

    async def behave(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        await grades(after_s=SCALE * _latency(chance))(server, body, writer)

    async with ScriptedServer([behave]) as server:
        told.send(server.url)
        await asyncio.Event().wait()
