"""Comparing answers where others wait: what takes too long is left open."""

from __future__ import annotations

from services.grader.answers.asking import UNKNOWN, Question
from services.grader.answers.comparing import Verdict, compare_answers
from services.grader.answers.work import OutOfWork, at_most

_MAX_STEPS = 15_000


def settle(gold: str, answer: str, question: Question = UNKNOWN) -> Verdict:
    """The verdict of `compare_answers` without computer algebra; None if that is much work."""
    try:
        with at_most(_MAX_STEPS):
            return compare_answers(gold, answer, question=question)
    except OutOfWork:
        return Verdict(None, "work")
