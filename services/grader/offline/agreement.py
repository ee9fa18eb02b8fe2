"""How far a verifier agrees with labels given by a person. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True)
class Case:
    """What a person and a verifier say of one solution, in [0, 1]; None: ungradable, for a reason.

    ``is_right``: whether the person says that its answer is right, whatever the label is about.
    """

    kind: str
    is_right: bool
    label: float
    given: float | None
    reason: str | None = None


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """The agreement over all cases, over those with a right answer, and over each kind.

    Those with a right answer are all that a recipe with ``process_for = "correct"`` has scored.
    ``confusion`` says how often each labelled level was given as which level.
    """
    confusion: dict[str, Counter[str]] = {}
    for case in cases:
        given = "ungradable" if case.given is None else f"{level_of(case.given):g}"
        confusion.setdefault(f"{level_of(case.label):g}", Counter())[given] += 1
    kinds = dict.fromkeys(case.kind for case in cases)
    return {
        "all": agreement(cases),
        "right_outcome": agreement([case for case in cases if case.is_right]),
        "ungradable": Counter(str(case.reason) for case in cases if case.given is None),
        "confusion": confusion,
        "kinds": {kind: agreement([case for case in cases if case.kind == kind]) for kind in kinds},
    }


def agreement(cases: Sequence[Case]) -> dict[str, float | None]:
    """The share of equal levels, and Cohen's kappa, its weights linear in the distance of levels.

    Both are over what was graded, and None where that says nothing.
    """
    pairs = [(level_of(c.label), level_of(c.given)) for c in cases if c.given is not None]
    same = sum(label == given for label, given in pairs)
    return {
        "n": len(cases),
        "graded": len(pairs),
        "same_level": round(same / len(pairs), 4) if pairs else None,
        "kappa": _kappa(pairs),
    }


def level_of(score: float) -> float:
    """The nearest of 0, 0.5 and 1; the upper one of two that are as near."""
    return math.floor(2 * score + 0.5) / 2


def _kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """1 - observed ÷ expected distance of levels; None if both say one level of everything."""
    observed = sum(abs(label - given) for label, given in pairs)
    labels, answers = Counter(label for label, _ in pairs), Counter(given for _, given in pairs)
    by_chance = sum(
        labels[label] * answers[given] * abs(label - given)
        for label, given in product(labels, answers)
    )
    return round(1 - observed * len(pairs) / by_chance, 4) if by_chance else None
