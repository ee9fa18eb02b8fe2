"""How the scores of several checks become one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.formula import FormulaError, read_formula
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import Check

MAX_MARKS, MAX_COMMENT_CHARS = 100, 2_000  # of a score


@dataclass(frozen=True)
class Scored:
    """What one check has found."""

    check: Check
    score: Score


def combined(parts: Sequence[Scored], *, of: int, formula: str | None = None) -> Score:
    """The weighted mean of at least one check; where the recipe has one, its score as it is.

    With a formula, its value, cut to [0, 1]; where it has none, as in a division by zero, the whole
    is ungradable.

    ``of`` is how many checks the recipe has, of which some may not see this response.

    A check that could not grade makes the whole ungradable, unless the recipe says to leave it out;
    if nothing is left, the whole is ungradable. The breakdown holds every check's value under its
    label, and its own breakdown below that; the reason is that of the check with the lowest value.
    The marks are those of all checks, and the comments too, under their labels, as far as
    `MAX_MARKS` and `MAX_COMMENT_CHARS` allow.
    """
    if of == 1 and formula is None:
        return _bounded(parts[0].score)
    lost = [part for part in parts if isinstance(part.score, Ungradable)]
    spoilt = [part for part in lost if part.check.if_ungradable == "ungradable"]
    if spoilt or len(lost) == len(parts):
        return (spoilt or lost)[0].score
    graded = [(part.check, part.score) for part in parts if isinstance(part.score, Graded)]
    try:
        value = _mean(graded) if formula is None else _reckoned(formula, graded)
    except FormulaError:
        return Ungradable(reason="formula_undefined")
    return _bounded(_together(graded, min(1.0, max(0.0, value))))


def _mean(parts: Sequence[tuple[Check, Graded]]) -> float:
    total = sum(check.weight for check, _ in parts)
    return sum(check.weight * score.value for check, score in parts) / total


def _reckoned(formula: str, parts: Sequence[tuple[Check, Graded]]) -> float:
    numbers = {check.label: check.as_meant(score.value) for check, score in parts}
    return read_formula(formula).value(numbers)


def _together(parts: Sequence[tuple[Check, Graded]], value: float) -> Graded:
    lowest = min(parts, key=lambda part: part[1].value)[1]
    return Graded(
        value=value,
        reason=lowest.reason,
        breakdown=_breakdown(parts),
        marks=tuple(mark for _, score in parts for mark in score.marks),
        comments={
            f"{check.label}.{name}": words
            for check, score in parts
            for name, words in score.comments.items()
        },
    )


def _bounded(score: Score) -> Score:
    """The first marks, and of each comment its share of the characters."""
    if isinstance(score, Ungradable) or not (score.comments or len(score.marks) > MAX_MARKS):
        return score
    share = MAX_COMMENT_CHARS // max(1, len(score.comments))
    cut = {name: words[:share] for name, words in score.comments.items()}
    return score.model_copy(update={"marks": score.marks[:MAX_MARKS], "comments": cut})


def _breakdown(parts: Sequence[tuple[Check, Graded]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for check, score in parts:
        values[check.label] = score.value
        values |= {f"{check.label}.{key}": value for key, value in score.breakdown.items()}
    return values
