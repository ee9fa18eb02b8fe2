"""The judge's own examination: a right and a wrong solution of a small problem."""

from __future__ import annotations

from protocol.messages import Task

from services.grader.judge.chat import Chat
from services.grader.judge.form import NoVerdict
from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import Question
from services.grader.judge.settings import MODEL

_TASK = Task(
    id="self-test",
    prompt="Show that the sum of two odd integers is even.",
    answer="shown",
    solution="Write the integers as 2a+1 and 2b+1 with integers a and b. Their sum is "
    "2a+1+2b+1 = 2(a+b+1), twice an integer, and therefore even.",
)
RIGHT = """Let m and n be odd. Then there are integers j and k with m = 2j + 1 and n = 2k + 1. So
m + n = (2j + 1) + (2k + 1) = 2j + 2k + 2 = 2(j + k + 1). As j + k + 1 is an integer, m + n is a
multiple of 2, which means that it is even."""
WRONG = """Let m and n be odd. Then m = 2j and n = 2k for some integers j and k, so m + n is
2(j - k). Since odd numbers are prime, j - k is odd. For example 3 + 4 = 7. Hence the sum is odd."""


async def examine(chat: Chat, seed: int) -> str | None:
    """Why the judge is of no use, or None if it tells right from wrong.

    Raises:
        ChatError: if there is no answer.
    """
    try:
        right, wrong = await _grade(chat, RIGHT, seed), await _grade(chat, WRONG, seed)
    except NoVerdict as error:
        why = f"gives no verdict on a solution known to be right or wrong: {error}"
    else:
        if right > wrong:
            return None
        why = f"gave {wrong:g} to a wrong solution and {right:g} to a right one: it cannot judge"
    return f"{why}; check {MODEL}"


async def _grade(chat: Chat, solution: str, seed: int) -> float:
    rubric = load_rubric("holistic")
    question = Question(
        rubric_messages(rubric, _TASK, solution),
        rubric_form(rubric),
        reasoning_effort="low",
        max_tokens=2048,
        seed=seed,
    )
    try:
        verdict = await chat.ask(question)
    except NoVerdict as failure:
        verdict = await chat.ask(question.after(failure))
    return rubric.score({name: str(value) for name, value in verdict.items()})
