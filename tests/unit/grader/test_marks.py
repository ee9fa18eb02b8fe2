"""Where the graders looked in a response: exactly these characters, whatever it is written in."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Score
from protocol.rewards import Check, MathAnswer

from services.grader.steps import Derivation
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps, math_answer
from tests.builders import a_task
from tests.unit.grader.steps.found import judge

pytestmark = pytest.mark.anyio

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
    steps = judge(text, 99)
    score = equation_steps.score(Derivation(steps, [True] * len(steps), 1, 1, 1))
    assert expected == marks_of(score, text)


async def test_a_right_step_that_leads_nowhere_is_marked_as_not_used(tools: Tools) -> None:
    text, check = r"2+2=4. 1+1=2 \boxed{2}", Check(verifier="equation_steps")
    score = await equation_steps.verify(a_task(), text, check, tools)
    assert marks_of(score, text) == ["unknown 2+2=4 (not used)", "right 1+1=2"]


def marks_of(score: Score, text: str) -> list[str]:
    assert isinstance(score, Graded)
    return [
        f"{mark.verdict} {text[mark.start : mark.end]}" + (mark.note and f" ({mark.note})")
        for mark in score.marks
        if mark.start < mark.end <= len(text)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"First \boxed{4}, no: $\boxed{5}$.", "right 5"),
        ("\u200b So \\boxed{ \\frac{10}{2} } at last", r"right  \frac{10}{2} "),
        (r"\boxed{\boxed{5}}", r"right \boxed{5}"),
        (r"So \boxed 6.", "wrong 6"),
        (r"\boxed{５}", "right ５"),
        ("It is 5.", None),
        (r"\boxed{}", None),
        ("So " * 40_000 + r"\boxed{5}", "right 5"),  # scanned in the pool
    ],
)
async def test_the_answer_that_was_taken_is_marked(
    text: str, expected: str | None, tools: Tools
) -> None:
    check = MathAnswer()
    score = await math_answer.verify(a_task(answer="5"), text, check, tools)
    assert isinstance(score, Graded)
    found = [f"{mark.verdict} {text[mark.start : mark.end]}" for mark in score.marks]
    assert found == ([] if expected is None else [expected])
    assert [mark.note for mark in score.marks] == [score.reason or ""] * len(found)
