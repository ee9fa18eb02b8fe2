"""How far a verifier agrees with labels given by a person. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

LEVELS = (0.0, 0.5, 1.0)
TOLERANCE = 0.25  # within which a process score agrees
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Case:
    """What a person and a verifier say of one solution, in [0, 1]; None: ungradable.

    ``is_right``: whether the person says that its answer is right, whatever the label is about.
    """

    kind: str
    is_right: bool
    label: float
    given: float | None
    ms: float
    reason: str | None = None


@dataclass(frozen=True)
class Agreement:
    """Over the cases that were graded; NaN where that says nothing.

    ``exact`` is the share of equal levels, ``close`` that of scores within `TOLERANCE`; ``error``
    the mean absolute error. ``kappa`` is Cohen's, its weights linear in the distance of levels.
    """

    num_cases: int
    num_graded: int
    exact: float
    close: float
    error: float
    kappa: float


def agreement(cases: Sequence[Case]) -> Agreement:
    """The agreement over some cases."""
    pairs = [(case.label, case.given) for case in cases if case.given is not None]
    return Agreement(
        num_cases=len(cases),
        num_graded=len(pairs),
        exact=_mean([level_of(label) == level_of(given) for label, given in pairs]),
        close=_mean([abs(label - given) <= TOLERANCE + _ROUNDING for label, given in pairs]),
        error=_mean([abs(label - given) for label, given in pairs]),
        kappa=_kappa([(level_of(label), level_of(given)) for label, given in pairs]),
    )


def level_of(score: float) -> float:
    """The nearest of 0, 0.5 and 1; the upper one of two that are as near."""
    return math.floor(2 * score + 0.5) / 2


def confusion(cases: Sequence[Case]) -> Mapping[tuple[float, float | None], int]:
    """How many cases have a labelled level and a level given, or None."""
    return Counter(
        (level_of(case.label), None if case.given is None else level_of(case.given))
        for case in cases
    )


def by_kind(cases: Sequence[Case]) -> dict[str, Agreement]:
    """The agreement over the cases of each kind, in the order in which kinds come first."""
    kinds = dict.fromkeys(case.kind for case in cases)
    return {kind: agreement([case for case in cases if case.kind == kind]) for kind in kinds}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed; NaN without any."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else math.nan


def _kappa(pairs: Sequence[tuple[float, float]]) -> float:
    """1 - observed ÷ expected distance of levels; NaN if both say one level of everything."""
    labels, given = (Counter(side) for side in zip(*pairs, strict=True)) if pairs else ({}, {})
    observed = math.fsum(abs(label - level) for label, level in pairs)
    by_chance = math.fsum(
        labels[label] * given[level] * abs(label - level) for label, level in product(labels, given)
    )
    return 1 - observed * len(pairs) / by_chance if by_chance else math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
