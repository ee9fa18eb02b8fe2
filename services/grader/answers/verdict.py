"""Whether two answers are the same: equal, different or unknown, and by which rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.grader.answers.question import Question
from services.grader.answers.values import Value

_MAX_PAIRS = 130  # of parts, in the event loop


class OutOfWork(Exception):
    """A comparison takes too long for the event loop; what it would find is not known."""


@dataclass(frozen=True)
class Verdict:
    """``equal`` is None where it is not known."""

    equal: bool | None
    path: str


# Two values (gold, answer): equal or not, or None if that cannot be said.
Algebra = Callable[[Value, Value], bool | None]


@dataclass
class Comparison:
    """Puts pairs of values to the rules, which may ask it about parts of them."""

    question: Question
    rules: Sequence[Rule]
    algebra: Algebra | None = None
    pairs: int = 0  # compared so far

    def same(self, gold: Value, answer: Value) -> Verdict:
        """Whether two values are the same, by the first rule that fits.

        Raises:
            OutOfWork: after 130 pairs of parts, if there is no algebra.
        """
        self.pairs += 1
        if self.pairs > _MAX_PAIRS and self.algebra is None:
            raise OutOfWork
        if gold == answer:
            return Verdict(True, "exact")
        for rule in self.rules:
            verdict = rule(gold, answer, self)
            if verdict is not None:
                return verdict
        return Verdict(False, "kind")

    def by_algebra(self, gold: Value, answer: Value) -> bool | None:
        """Whether two values are the same mathematics; None where there is no algebra."""
        return self.algebra(gold, answer) if self.algebra else None


Rule = Callable[[Value, Value, Comparison], Verdict | None]


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is unknown."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is, else None if one is unknown."""
    found = list(verdicts)
    return True if True in found else None if None in found else False
