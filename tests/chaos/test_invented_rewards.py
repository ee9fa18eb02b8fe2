"""Grades by thousands while workers die and the judge fails: none invented, none lost.

With `make test-long` there are ten thousand for each of WEIR_CHAOS_ROUNDS.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any

import psutil
import pytest
from protocol.messages import Grade, Graded, RolloutGroup, Ungradable
from protocol.rewards import Reward

from services.chassis.pool import BACKLOG, Failed, Pool, Value
from services.grader import grading
from services.grader.judge.judge import Judge
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps, math_answer
from tests.builders import a_group, a_request, a_task
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    breaks_off,
    floods,
    grades,
    hangs,
    judge_settings,
    replies,
    says,
    until,
)

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("WEIR_CHAOS_ROUNDS", "10"))
GROUP_SIZE = 8
GROUPS_AT_ONCE = 64
BY_RULE, BY_JUDGE = (
    Reward.model_validate({"process": verifier}) for verifier in ("equation_steps", "model_judge")
)
SOUND = "Each step is shown."
UNSOUND = "It is obvious."
DARK = "Nobody can tell."

# What a response may do to whoever grades it, and what it deserves: nothing.
HOSTILE = (
    r"\boxed{NaN}",
    r"\boxed{\text{NaN}}",
    r"\boxed{\infty}",
    r"\boxed{" + "{" * 100_000,
    r"\boxed{" + "9" * 5_000 + "}",
    b"\\boxed{\xff\xfe 7}".decode(errors="surrogateescape"),
    "\\boxed{\x00}",
    "\\boxed{\ud800}",
    r"\boxed{}",
    r"\boxed{\frac{1}{0}}",
    "no box at all",
)
HANGS = (r"5^{5^{5^{5+%d}}}", r"\sum_{k=1}^{10^{12}+%d}\sin(k^2)", r"\gcd(3^{5^{9}}, %d)")
UNGRADABLE = {"no_verdict", "judge_failed", "judge_timeout", "starved", "equations_not_read"}


@dataclass(frozen=True)
class Case:
    """A response, and what it deserves; None where no value is asked for."""

    text: str
    accuracy: float
    process: float | None


Kind = tuple[Reward, str, list[Case]]  # of responses to one task, with its gold answer


@dataclass
class Census:
    """What became of the grades."""

    graded: int = 0
    invented: list[tuple[str, Grade]] = field(default_factory=list)
    ungradable: Counter[str] = field(default_factory=Counter)

    def enter(self, case: Case, grade: Grade) -> None:
        """Compare a grade with what the response deserves."""
        self.graded += 1
        is_wrong = grade.process is None and case.process is not None and grade.accuracy == 1
        for score, deserved in ((grade.outcome, case.accuracy), (grade.process, case.process)):
            if isinstance(score, Ungradable):
                self.ungradable[score.reason] += 1
            is_wrong |= isinstance(score, Graded) and score.value != deserved
        if is_wrong:
            self.invented.append((case.text[:200], grade))


def arithmetic(chance: random.Random, serial: int) -> Kind:
    """Plain answers with a step each, of which some are wrong, and hostile ones between them."""
    gold = chance.randrange(10, 10_000)

    def case() -> Case:
        right = chance.random() < 0.5
        step_right = chance.random() < 0.8
        if chance.random() < 0.02:
            return Case(chance.choice(HOSTILE), 0, None)
        answer = gold if right else gold + chance.randrange(1, 9)
        step = f"{gold - 7}+7={gold if step_right else gold + 1}"
        spelling = chance.choice((str(answer), rf"\text{{ }}{answer}", f"{answer}.", f"{answer:,}"))
        return Case(f"{step}\n\\boxed{{{spelling}}}", float(right), float(step_right))

    return BY_RULE, str(gold), [case() for _ in range(GROUP_SIZE)]


def algebra(chance: random.Random, serial: int) -> Kind:
    """Expressions that only algebra can compare, and some that nothing can."""
    shift = serial + 2
    gold = rf"(x+{shift})(x-{shift})"
    texts = [
        (rf"x^2 - {shift**2}", 1.0),
        (rf"-(({shift}-x)({shift}+x))", 1.0),
        (rf"x^2 + {shift**2}", 0.0),
        (rf"x^2 - {shift**2 + 1}", 0.0),
        (rf"x(x+{shift}) - {shift}(x+{shift})", 1.0),
        (rf"(x-{shift})^2", 0.0),
    ]
    if serial % 10 == 0:
        texts += [(chance.choice(HANGS) % serial, 0.0)]
    cases = [Case(f"1+1=2\n\\boxed{{{text}}}", value, 1.0) for text, value in texts]
    return BY_RULE, gold, cases + [Case(r"\boxed{x}", 0, None)] * (GROUP_SIZE - len(cases))


def proofs(chance: random.Random, serial: int) -> Kind:
    """Right answers whose reasoning the judge is asked about; of one in eight it says nothing."""

    def case(number: int) -> Case:
        if number == 0:
            return Case(rf"Way {serial}. {DARK} \boxed{{7}}", 1, None)
        sound = chance.random() < 0.5
        reasoning = SOUND if sound else UNSOUND
        return Case(rf"Way {serial}.{number}. {reasoning} \boxed{{7}}", 1, float(sound))

    return BY_JUDGE, "7", [case(number) for number in range(GROUP_SIZE)]


def too_long(chance: random.Random, serial: int) -> Kind:
    """Responses of 50 MB beside short ones."""
    long = Case("1" * 50_000_000 + r"\boxed{9}", 0, None)
    return BY_RULE, "9", [long, *[Case("2+7=9\n\\boxed{9}", 1, 1)] * (GROUP_SIZE - 1)]


async def honest(
    server: ScriptedServer, body: dict[str, Any], writer: asyncio.StreamWriter
) -> None:
    """The grade that the solution deserves."""
    await grades(right=SOUND in body["messages"][-1]["content"])(server, body, writer)


OF_A_WRONG_SCHEMA = '{"analysis": "", "solution": "complete", "score": 1}'
FAULTS: tuple[Behaviour, ...] = (
    replies(b"out of memory", 500),
    replies(b"overloaded", 503),
    replies(b"slow down", 429),
    replies(b"<html>", 200),
    says("The score is 1."),
    says('{"analysis": "", "solution": "complete"'),
    says(OF_A_WRONG_SCHEMA),
    says('{"analysis": "", "solution": 1}'),
    says('{"analysis": "", "solution": NaN}'),
    says('{"analysis": "", "solution": "complete", "solution": "wrong"}'),
    says('["complete"]'),
    says(None, "length"),
    says('{"analysis": "", "solution": "complete"}', "length"),
    breaks_off(b""),
    breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"),
    breaks_off(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"),
)
RARE_FAULTS: tuple[Behaviour, ...] = (hangs, floods)


class FailingServer(ScriptedServer):
    """One call in four fails, in each way in turn; now and then one hangs or floods."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()
        self._faults = cycle(FAULTS)
        self._rare = cycle(RARE_FAULTS)

    def _next(self, body: dict[str, Any]) -> Behaviour:
        number = next(self._numbers)
        if DARK in body["messages"][-1]["content"]:
            self.script = [says(DARK)]
        elif number % 200 == 100:
            self.script = [next(self._rare)]
        else:
            self.script = [next(self._faults) if number % 4 == 3 else honest]
        self.requests.clear()
        return super()._next(body)


def groups(size: int) -> Iterator[tuple[Reward, RolloutGroup, list[Case]]]:
    """So many times 37 groups of most kinds, mixed, and one that is too long."""
    chance = random.Random(20)
    kinds = ([arithmetic] * 32 + [proofs] * 4 + [algebra]) * size + [too_long]
    chance.shuffle(kinds)
    serials = {kind: count() for kind in set(kinds)}
    for number, kind in enumerate(kinds):
        reward, gold, cases = kind(chance, next(serials[kind]))
        solution = f"{int(gold) - 7}+7={gold}" if gold.isdecimal() else "1+1=2"
        task = a_task(answer=gold, solution=solution)
        request = a_request(number=number, group_size=GROUP_SIZE, task=task)
        yield reward, a_group(request, texts=[case.text for case in cases]), cases


@asynccontextmanager
async def misfortune(pool: Pool, server: ScriptedServer) -> AsyncIterator[None]:
    """Meanwhile workers are killed, the forkserver once, and the judge goes away and comes back.

    Others use the pool too, and take all memory, crash, and hang in it.
    """

    async def strike() -> None:
        for blow in count():
            await asyncio.sleep(0.5)
            function = ("hoard", "segfault", "hang_in_c")[blow % 3]
            outcome = await pool.run(f"tests.unit.grader.hostile:{function}", deadline_s=0.3)
            assert isinstance(outcome, Failed)
            assert pool._server is not None
            with suppress(psutil.NoSuchProcess):  # one that has just been buried
                parent = psutil.Process(pool._server.pid)
                victims = [parent] if blow % 20 == 4 else parent.children()[:1]
                for victim in victims:
                    victim.kill()
            if blow % 15 == 5:
                await server.go_away()
                await asyncio.sleep(0.3)
                await server.come()

    striking = asyncio.create_task(strike())
    try:
        yield
    finally:
        striking.cancel()
        with suppress(asyncio.CancelledError):
            await striking


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(10, marks=pytest.mark.timeout(900)),
        pytest.param(34 * ROUNDS, marks=[pytest.mark.long, pytest.mark.timeout(0)]),
    ],
)
async def test_no_reward_is_invented_and_no_response_is_lost(size: int) -> None:
    """In the midst of misfortune."""
    census = Census()
    places = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def grade(reward: Reward, group: RolloutGroup, cases: list[Case]) -> None:
        try:
            for case, scores in zip(
                cases,
                await grading.grade(reward, group, tools),
                strict=True,
            ):
                census.enter(case, scores)
        finally:
            places.release()

    async with (
        Pool(2, warm_ups=[math_answer.WARM_UP, equation_steps.WARM_UP]) as pool,
        FailingServer() as server,
        Judge(judge_settings(server, timeout_s=2.0)) as judge,
    ):
        tools = Tools(pool, judge)
        async with misfortune(pool, server), asyncio.TaskGroup() as tasks:
            for reward, group, cases in groups(size):
                await places.acquire()
                tasks.create_task(grade(reward, group, cases))
        assert BACKLOG.labels("no")._value.get() == BACKLOG.labels("yes")._value.get() == 0
        await run_full_strength(pool)
        await until(lambda: judge.is_up, within_s=60)
    assert census.invented == []
    assert census.graded == GROUP_SIZE * (37 * size + 1)
    assert set(census.ungradable) <= UNGRADABLE
    assert census.ungradable["no_verdict"] >= 2 * size  # twice as many never get a verdict
    if size > 10:
        assert census.ungradable.total() < 0.05 * census.graded, census.ungradable


async def run_full_strength(pool: Pool) -> None:
    """Both workers answer, at the same time; one may be new, and take a while to come."""
    nap = "tests.unit.grader.hostile:nap_and_tell"
    for _ in range(20):
        one, other = await asyncio.gather(
            *(
                pool.run(
                    nap,
                    0.3,
                    deadline_s=30,
                )
                for _ in range(2)
            )
        )
        if isinstance(one, Value) and isinstance(other, Value) and one != other:
            return
    raise AssertionError("one worker does the work of two")
