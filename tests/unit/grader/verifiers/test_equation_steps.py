"""What the equations of a response are worth, and who is to blame if they cannot be read."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import Check

from services.grader.pool import Cause, Failed
from services.grader.steps import Step
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
    return await equation_steps.verify(a_task(solution=solution), text, CHECK, tools)


def some_steps(right: int, wrong: int, others: int) -> list[Step]:
    verdicts = ["right"] * right + ["wrong"] * wrong + ["open"] * others
    return [Step(verdict, str(at)) for at, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("right", "wrong", "required", "value", "reason"),
    [
        (3, 0, 3, 1, None),
        (2, 1, 3, 2 / 3, "wrong_equations"),
        (2, 0, 3, 2 / 3, "missing_steps"),
        (3, 1, 3, 3 / 4, "wrong_equations"),
        (9, 1, 3, 3 / 4, "wrong_equations"),  # more right ones do not dilute a wrong one
        (0, 0, 3, 0, "no_equations"),
        (0, 0, 0, 0, "no_equations"),
        (2, 2, 0, 1 / 2, "wrong_equations"),
        (MAX_STEPS - 1, 0, 3, 0, "too_long"),  # with the two others
    ],
)
def test_the_score_is_the_share_of_right_steps(
    right: int, wrong: int, required: int, value: float, reason: str | None
) -> None:
    score = equation_steps.score(some_steps(right, wrong, others=2), required)
    assert score.value == pytest.approx(value)
    assert score.reason == reason
    assert score.breakdown["written"] == right + wrong
    assert score.breakdown["open"] == 2


@pytest.mark.parametrize(
    ("solution", "text", "value"),
    [
        (SOLUTION, SOLUTION, 1),
        (SOLUTION, r"47+8=55;55+1=56;\boxed{56}", 2 / 3),
        ("by inspection", "1+1=2", 1),
        (SOLUTION, "1+1=2;1+2=3;1+3=4;" + "so " * 5000, 1),
        (None, "1+1=2;" * 3 + "x" * 1_000_000, 0),
        (r"$2(3) = 6$ and $x = 3$", r"Since $x = 3$, $x + x = 2x = 6$ and $2(3) = 6$.", 1),
        (r"$2(3) = 6$, $\sqrt{4} = 2$", r"$2(3) = 6$, $\sqrt{4} = 3$", 1 / 2),
    ],
)
async def test_a_solution_says_how_many_steps_are_required(
    tools: Tools, solution: str | None, text: str, value: float
) -> None:
    assert (await graded(text, solution, tools)).value == pytest.approx(value)


async def test_padding_and_repetition_do_not_raise_the_score(tools: Tools) -> None:
    honest = "47+8=55;55-6=48;"
    padding = [honest, "1=1;7=7;", "47+8=55;" * 20, "55 = 8 + 47;" * 20, "x=x;", r"$(3)=(3)$;"]
    many = "".join(f"{at}+1={at + 1};" for at in range(50))
    before = (await graded(honest, SOLUTION, tools)).value
    for padded in padding:
        assert (await graded(honest + padded, SOLUTION, tools)).value <= before
    assert (await graded(honest + many, SOLUTION, tools)).value < 1


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (Failed(Cause.TIMEOUT, cpu_s=0.1), NOT_READ),
        (Failed(Cause.KILLED), NOT_READ),
        (Failed(Cause.ERROR), NOT_READ),
        (Failed(Cause.TIMEOUT, cpu_s=19.0), "too_hard"),
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
