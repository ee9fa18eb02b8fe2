"""Answers that are no mathematics: words, and letters of a choice."""

from __future__ import annotations

from services.grader.answers.values import Choice, Expression, Value, Words
from services.grader.answers.verdict import Comparison, Verdict


def words(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Without capitals, articles and marks."""
    if not (isinstance(gold, Words) or isinstance(answer, Words)):
        return None
    said, other = _letters(gold).casefold(), _letters(answer).casefold()
    return Verdict(said == other != "", "words")


def _letters(value: Value) -> str:
    """An answer in words, or letters that may be some; empty for any other."""
    if isinstance(value, Words):
        return value.said
    if isinstance(value, Choice):
        return value.letters
    return value.latex if isinstance(value, Expression) else ""


def choices(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``(B) 12`` is B, and for a gold 12 its value counts."""
    if not isinstance(gold, Choice):
        if isinstance(answer, Choice) and answer.rest is not None:
            return by.same(gold, answer.rest)
        return None
    if not isinstance(answer, Choice):
        is_letter = isinstance(answer, Expression) and answer.latex.upper() == gold.letters
        if is_letter or gold.rest is None:
            return Verdict(is_letter, "choice")
        return by.same(gold.rest, answer)
    if answer.letters != gold.letters or gold.rest is None or answer.rest is None:
        return Verdict(answer.letters == gold.letters, "choice")
    return by.same(gold.rest, answer.rest)
