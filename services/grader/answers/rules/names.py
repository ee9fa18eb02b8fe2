"""Answers that are no mathematics: words, choices, names, times of day, classes of integers."""

from __future__ import annotations

from services.grader.answers.values import (
    CLOCK,
    Choice,
    Expression,
    Name,
    Number,
    Relation,
    Residues,
    Set,
    Time,
    Tuple,
    Value,
    Words,
)
from services.grader.answers.verdict import Comparison, Verdict
from services.grader.answers.words import read_progression

_HAS_TWO_ENDS = frozenset({"angle", "overline", "overleftrightarrow"})


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


def symbols(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    r"""``\angle ABC`` is ``\angle CBA`` and ``\angle B``, and ``\overline{AB}`` is AB."""
    if not isinstance(gold, Name):
        return Verdict(False, "symbol") if isinstance(answer, Name) else None
    other = answer if isinstance(answer, Name) else Name(gold.kind, _letters(answer))
    is_same = gold.name in _also_called(other) or other.name in _also_called(gold)
    return Verdict(gold.kind == other.kind and is_same, "symbol")


def _also_called(thing: Name) -> set[str]:
    names = {thing.name}
    if thing.kind in _HAS_TWO_ENDS:
        names.add(thing.name[::-1])
    if thing.kind == "angle" and len(thing.name) == 3:
        names.add(thing.name[1])
    return names


def times(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Where one leaves out which half of the day it is either, as a unit left out is any unit."""
    kinds = {type(gold), type(answer)}
    if Time not in kinds or Set in kinds:
        return None
    first, second = _time(gold, answer), _time(answer, gold)
    is_ratio = by.question.asks_ratio and not isinstance(gold, Time)
    if first is None or second is None or is_ratio:
        return Verdict(False, "time")
    is_half = first.half == second.half or None in (first.half, second.half)
    return Verdict(first.minutes == second.minutes and is_half, "time")


def _time(value: Value, other: Value) -> Time | None:
    """Also of ``18:00``, and of the hour ``6`` beside a time that says which half of the day."""
    if isinstance(value, Time):
        return value
    if isinstance(value, Tuple) and value.brackets == CLOCK and len(value.parts) == 2:
        hour, minute = (int(p.value) if isinstance(p, Number) else 99 for p in value.parts)
        if 0 < hour < 24:
            return Time(hour % 12 * 60 + minute, "p" if hour > 12 else None)
    if isinstance(value, Number) and isinstance(other, Time) and not other.is_bare:
        return Time(int(value.value) % 12 * 60) if value.value in range(1, 13) else None
    return None


def residues(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    r"""``x \equiv 3 \pmod 5`` is ``5k + 3``."""
    if not isinstance(gold, Residues) or not gold.letter:
        return None
    text = "=".join(answer.texts) if isinstance(answer, Relation) else _letters(answer)
    found = answer if isinstance(answer, Residues) else read_progression(text)
    if found is None or found.letter not in ("", gold.letter):
        return Verdict(False, "congruence")
    same = (found.residues, found.modulus) == (gold.residues, gold.modulus)
    return Verdict(same, "congruence")
