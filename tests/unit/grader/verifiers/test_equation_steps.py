"""Equations of a response have a score, or a reason why they have none."""

import pytest
from answers.steps import UNREAD, Derivation, Step
from answers.steps.derivation import derive
from protocol.messages import Graded, Score
from protocol.rewards import Check

from examples.arithmetic.tasks import distinct_tasks
from services.chassis.pool import Cause, Failed
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps
from services.grader.verifiers.equation_steps import MAX_STEPS
from tests.builders import a_task
from tests.tables import table
from tests.unit.grader.pools import failing_tools
from tests.unit.grader.scores import describe

pytestmark = pytest.mark.anyio

SOLUTION = r"47+8=55;55-6=49;49+7=56;\boxed{56}"
CHECK = Check(verifier="equation_steps")


async def scored(text: str, solution: str | None, tools: Tools) -> Score:
    task = a_task(prompt="47+8-6+7=?", answer="56", solution=solution)
    return await equation_steps.verify(task, text, CHECK, tools)


@table(
    """
    verdicts | low | high | required | score
    rrro     | 1   | 1    | 3        | 1
    rrw      | 0.5 | 0.5  | 3        | 0.5 wrong_equations
    rr       | 0.5 | 0.5  | 3        | 0.5 missing_steps
    rr       | 0   | 0    | 3        | 0 nothing_derived
    rro      | 0   | 1    | 3        | ungradable steps_open
    ou       | 0   | 1    | 3        | ungradable no_steps_read
             | 0   | 0    | 3        | 0 no_equations
             | 0   | 0    | 0        | ungradable no_steps_read
    """,
    ("r" * (MAX_STEPS + 1), 1, 1, 3, "0 too_long"),
)
def test_a_score_has_its_reason_and_what_cannot_be_judged_is_ungradable(
    verdicts: str, low: float, high: float, required: int, score: str
) -> None:
    """Of right, wrong, open and unread steps, of which the right ones are used.

    Without equations it is a 0, or hiding them would pay more than being judged.
    """
    names = {"r": "right", "w": "wrong", "o": "open", "u": "unread"}
    steps = [Step(names[verdict], str(at)) for at, verdict in enumerate(verdicts)]
    is_used = [verdict == "r" for verdict in verdicts]
    derivation = Derivation(steps, is_used, required, low, high)
    assert describe(equation_steps.score(derivation)) == score


@pytest.mark.parametrize(
    ("solution", "text", "score"),
    [
        (SOLUTION, SOLUTION, "1"),
        (SOLUTION, r"47+8=55;55+1=56;\boxed{56}", "0.125 missing_steps"),
        (None, SOLUTION, "1"),
        (SOLUTION, "1+1=2;1+2=3;1+3=4;" + "so " * 5000, "0 nothing_derived"),
        (None, "1+1=2;" * 3 + "x" * 1_000_000, "0 too_long"),
        (" " * 1_000_001, "1+1=2", "ungradable solution_too_long"),
    ],
    ids=range(6),
)
async def test_the_problem_the_solution_and_the_answer_are_those_of_the_task(
    tools: Tools, solution: str | None, text: str, score: str
) -> None:
    assert describe(await scored(text, solution, tools)) == score


@table("""
    cause   | score
    stall   | ungradable equations_not_read
    killed  | ungradable equations_not_read
    error   | ungradable equations_not_read
    timeout | 0 too_hard
    crash   | 0 too_hard
""")
async def test_only_what_no_worker_survives_is_the_fault_of_the_response(
    cause: str, score: str
) -> None:
    tools, calls = failing_tools(Failed(Cause(cause)))
    assert describe(await scored("2(3)=6", None, tools)) == score
    assert calls == [False, True]
    of_solution = await scored("2(3)=6", "1+1=2", tools)
    assert describe(of_solution) == "ungradable equations_not_read"


ALIGNED = r"""\begin{align*}
(x + 1)^2 &= x^2 + 2x + 1 \\
3 \cdot 4 &= 12 \\[4pt]
  &= 14 - 2 \\
  &= \frac{26}{2}
\end{align*}"""
# A text, and of each mark the verdict, the characters that it marks, and its note.
MARKED = [
    ("So 47+8=55.\nAnd 47 + 8 = 56.", ["right 47+8=55", "wrong 47 + 8 = 56 (left 55, right 56)"]),
    (r"We have $12\cdot 3 = 36 = 38 - 1$, and $x = 36$.", [
        r"right 12\cdot 3 = 36", "wrong = 38 - 1 (left 36, right 37)", "unknown x = 36",
    ]),
    (ALIGNED, [
        "right (x + 1)^2 &= x^2 + 2x + 1",
        r"right 3 \cdot 4 &= 12",
        "right = 14 - 2",
        r"wrong = \frac{26}{2} (left 12, right 13)",
    ]),
    ("$2 + 3$\n= $5$\n\n$2+2$ = $5$", ["right 2 + 3$\n= $5", "wrong 2+2$ = $5 (left 4, right 5)"]),
    (r"$\boxed{4} = 2+2$.", [r"right {4} = 2+2"]),
    ("２＋２＝５ but 3×4 ≠ 12", ["wrong ２＋２＝５ (left 4, right 5)", "wrong 3×4 ≠ 12"]),
    ("\ufeff3\u200b ×\u200b 4 = 13\u200b.", [  # white space of no width
        "wrong 3\u200b ×\u200b 4 = 13 (left 12, right 13)",
    ]),
    ("$120=5!=60 \\cdot 2$", ["right 120=5!", r"right =60 \cdot 2"]),
    (r"So $17 \equiv 2 \pmod{5}$; 17 ≡ 3 (mod 5).", [r"right 17 \equiv 2", "wrong 17 ≡ 3"]),
    ("- 2*3 = 6\n- |2-5| = 3\n1. 50% * 8 = 4", [
        "right - 2*3 = 6", "right - |2-5| = 3", "right 50% * 8 = 4",
    ]),
    ("2+2=4; 2 + 2 = 4", ["right 2+2=4", "right 2 + 2 = 4"]),  # once a step, but in two places
    ("1 = 1 and no more", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MARKED)
async def test_every_step_is_marked_where_it_stands(text: str, expected: list[str]) -> None:
    steps = [step for step in derive(text, "", "", "", 99).steps if step.verdict != UNREAD]
    score = equation_steps.score(Derivation(steps, [True] * len(steps), 1, 1, 1))
    assert expected == describe_marks(score, text)


async def test_a_right_step_that_leads_nowhere_is_marked_as_not_used(tools: Tools) -> None:
    text = r"2+2=4. 1+1=2 \boxed{2}"
    score = await equation_steps.verify(a_task(), text, CHECK, tools)
    assert describe_marks(score, text) == ["unknown 2+2=4 (not used)", "right 1+1=2"]


def describe_marks(score: Score, text: str) -> list[str]:
    assert isinstance(score, Graded)
    return [
        f"{mark.verdict} {text[mark.start : mark.end]}" + (mark.note and f" ({mark.note})")
        for mark in score.marks
        if mark.start < mark.end <= len(text)
    ]


def test_every_task_of_the_demo_is_derived_as_it_is_meant_and_not_without_work() -> None:
    for task in distinct_tasks(200, held_out=True):
        lazy = [rf"{task.answer}+0={task.answer};", f"{task.answer}={task.answer};", "1+1=2;", ""]
        slip = task.solution.replace(f"={task.totals[1]};", f"={task.totals[1] + 1};", 1)
        for text in (task.solution, f"{task.prompt[:-1]}{task.answer};"):
            assert derive(text, task.prompt, task.solution, task.answer, 99).low == 1
        for text in lazy:
            assert derive(text, task.prompt, task.solution, task.answer, 99).low == 0
        assert derive(slip, task.prompt, task.solution, task.answer, 99).low <= 0.75
