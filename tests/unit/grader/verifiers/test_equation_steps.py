"""What the equations of a response are worth, and who is to blame if they cannot be read."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import Check

from services.grader.pool import Cause, Failed
from services.grader.steps import Derivation, Step
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps
from services.grader.verifiers.equation_steps import MAX_STEPS
from tests.builders import a_task
from tests.unit.grader.pools import failing_tools

pytestmark = pytest.mark.anyio

SOLUTION = r"47+8=55;55-6=49;49+7=56;\boxed{56}"
NOT_READ = Ungradable(reason="equations_not_read")
CHECK = Check(verifier="equation_steps")


async def graded(text: str, solution: str | None, tools: Tools) -> Graded:
    score = await scored(text, solution, tools)
    assert isinstance(score, Graded)
    return score


async def scored(text: str, solution: str | None, tools: Tools) -> Score:
    task = a_task(prompt="47+8-6+7=?", answer="56", solution=solution)
    return await equation_steps.verify(task, text, CHECK, tools)


def a_derivation(verdicts: str, low: float, high: float, required: int = 3) -> Derivation:
    """Of right, wrong, open and unread steps, of which the right ones are used."""
    names = {"r": "right", "w": "wrong", "o": "open", "u": "unread"}
    steps = [Step(names[verdict], str(at)) for at, verdict in enumerate(verdicts)]
    return Derivation(steps, [verdict == "r" for verdict in verdicts], required, low, high)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (a_derivation("rrro", 1, 1), (1, None)),
        (a_derivation("rrw", 0.5, 0.5), (0.5, "wrong_equations")),
        (a_derivation("rr", 0.5, 0.5), (0.5, "missing_steps")),
        (a_derivation("rr", 0, 0), (0, "nothing_derived")),
        (a_derivation("rro", 0, 1), "steps_open"),
        (a_derivation("ou", 0, 1), "no_steps_read"),
        (a_derivation("", 0, 0), (0, "no_equations")),  # or hiding would pay more than being judged
        (a_derivation("", 0, 0, required=0), "no_steps_read"),
        (a_derivation("r" * (MAX_STEPS + 1), 1, 1), (0, "too_long")),
    ],
)
def test_a_score_has_its_reason_and_what_cannot_be_judged_is_ungradable(
    found: Derivation, expected: tuple[float, str | None] | str
) -> None:
    score = equation_steps.score(found)
    if isinstance(score, Graded):
        assert (score.value, score.reason) == expected
        assert score.breakdown["required"] == found.required
    else:
        assert score.reason == expected


@pytest.mark.parametrize(
    ("solution", "text", "value"),
    [
        (SOLUTION, SOLUTION, 1),
        (SOLUTION, r"47+8=55;55+1=56;\boxed{56}", 1 / 8),
        (None, SOLUTION, 1),
        (SOLUTION, "1+1=2;1+2=3;1+3=4;" + "so " * 5000, 0),
        (None, "1+1=2;" * 3 + "x" * 1_000_000, 0),
    ],
)
async def test_the_problem_the_solution_and_the_answer_are_those_of_the_task(
    tools: Tools, solution: str | None, text: str, value: float
) -> None:
    assert (await graded(text, solution, tools)).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (Failed(Cause.STALL), NOT_READ),
        (Failed(Cause.KILLED), NOT_READ),
        (Failed(Cause.ERROR), NOT_READ),
        (Failed(Cause.TIMEOUT), "too_hard"),
        (Failed(Cause.CRASH), "too_hard"),
    ],
)
async def test_only_what_no_worker_survives_is_the_fault_of_the_response(
    failed: Failed, expected: Ungradable | str
) -> None:
    tools, calls = failing_tools(failed)
    score = await scored("2(3)=6", None, tools)
    assert (score if isinstance(score, Ungradable) else score.reason) == expected
    assert calls == [False, True]
    assert await scored("2(3)=6", "1+1=2", tools) == NOT_READ


async def test_a_solution_that_is_too_long_is_not_read(tools: Tools) -> None:
    too_long = await scored("1+1=2", " " * 1_000_001, tools)
    assert too_long == Ungradable(reason="solution_too_long")
