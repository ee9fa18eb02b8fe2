r"""Whether a model's mathematical answer equals the gold answer: LaTeX, plain text, or both mixed.

`is_equal` and `decide` compute in this process. Computer algebra may hang or take all memory on a
hostile answer: give such answers a process with limits, as Weir's grader does.
"""

from answers.boxes import last_box, last_boxed
from answers.comparison import Verdict
from answers.equality import compare
from answers.problem import MAX_CHARS as MAX_PROBLEM_CHARS
from answers.reading import read_answer
from answers.restating import is_restated
from answers.units import read_unit

__all__ = [
    "MAX_ANSWER_CHARS",
    "MAX_PROBLEM_CHARS",
    "MAX_RULE_CHARS",
    "Verdict",
    "compare",
    "decide",
    "is_equal",
    "is_restated",
    "last_box",
    "last_boxed",
    "read_answer",
    "read_unit",
]

MAX_ANSWER_CHARS = 2_000  # longer answers are wrong
MAX_RULE_CHARS = 500  # longer answers go to computer algebra at once


def is_equal(gold: str, response: str, problem: str = "") -> bool:
    r"""Return whether the answer in a response equals the gold answer.

    The answer is the content of the last ``\boxed{}``, or the whole response if it names no box.
    """
    answer = last_boxed(response)
    if answer is None:
        return "box" not in response and decide(gold, response, problem) == "right"
    return decide(gold, answer, problem) == "right"


def decide(gold: str, answer: str, problem: str = "") -> str:
    """Return "right", or why an answer is not: the reasons of `answers.algebra.equivalence`.

    Further reasons are "too_long" and "restated", for an answer that only repeats the problem.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return "too_long"
    problem = problem[-MAX_PROBLEM_CHARS:]
    equal = compare(gold, answer, problem).equal if len(answer) <= MAX_RULE_CHARS else None
    if equal is None:
        from answers.algebra import equivalence  # loads SymPy, which most answers do not need

        reason = equivalence.compare(gold, answer, problem)
    else:
        reason = "right" if equal else "wrong"
    if reason == "right" and is_restated(gold, answer, problem):
        return "restated"
    return reason
