"""The verdict on two values, and the comparison that a rule can ask about their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from answers.problem import Problem
from answers.values import Value

MAX_PAIRS = 130  # of parts that are compared without algebra


class OutOfWork(Exception):
    """A comparison without algebra takes too long; its result is not known."""


@dataclass(frozen=True)
class Verdict:
    """Whether two answers are equal, None if that is not known, and the path to this verdict."""

    equal: bool | None
    path: str


# Says of two values (gold, answer) whether they are equal, or None if it cannot tell.
Algebra = Callable[[Value, Value], bool | None]


@dataclass
class Comparison:
    """The comparison of an answer to a problem with its gold answer, part by part."""

    problem: Problem
    algebra: Algebra | None = None
    rules: Sequence[Rule] = field(default_factory=list)
    num_pairs: int = 0

    def compare(self, gold: Value, answer: Value) -> Verdict:
        """Return the verdict of the first rule that fits.

        Raises:
            OutOfWork: after 130 pairs of parts without algebra.
        """
        self.num_pairs += 1
        if self.num_pairs > MAX_PAIRS and self.algebra is None:
            raise OutOfWork
        if gold == answer:
            return Verdict(True, "exact")
        for rule in self.rules:
            verdict = rule(gold, answer, self)
            if verdict is not None:
                return verdict
        return Verdict(False, "kind")

    def are_equal(self, gold: Value, answer: Value) -> bool | None:
        return self.compare(gold, answer).equal

    def are_parts_equal(self, golds: Sequence[Value], answers: Sequence[Value]) -> bool | None:
        return conjunction(map(self.are_equal, golds, answers))

    def ask_algebra(self, gold: Value, answer: Value) -> Verdict:
        return Verdict(self.algebra(gold, answer) if self.algebra else None, "algebra")


Rule = Callable[[Value, Value, Comparison], Verdict | None]


def conjunction(verdicts: Iterable[bool | None]) -> bool | None:
    """Return False if one is, else None if one is, else True."""
    outcomes = set(verdicts)
    if False in outcomes:
        return False
    return None if None in outcomes else True


def disjunction(verdicts: Iterable[bool | None]) -> bool | None:
    """Return True if one is, else None if one is, else False."""
    outcomes = set(verdicts)
    if True in outcomes:
        return True
    return None if None in outcomes else False
