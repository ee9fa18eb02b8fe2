"""Measures how far verifiers agree with a person who graded the same solutions."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from protocol.messages import Graded, Task
from protocol.rewards import Check, MathAnswer, ModelJudge
from pydantic import BaseModel, ConfigDict, Field

from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

Label = Literal["outcome", "process"]
CALIBRATED: tuple[tuple[Check, Label], ...] = (
    (MathAnswer(), "outcome"),
    (Check(verifier="equation_steps"), "process"),
    (ModelJudge(), "process"),
)


class Labelled(BaseModel):
    """A person's verdict on a response; ``process`` grades the reasoning, in [0, 1]."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: str = Field(min_length=1)
    problem: str = Field(min_length=1)
    solution: str
    answer: str = Field(min_length=1)
    response: str
    kind: str = Field(min_length=1)
    outcome: bool
    process: float = Field(ge=0, le=1)

    @property
    def task(self) -> Task:
        return Task(id=self.id, prompt=self.problem, answer=self.answer, solution=self.solution)


@dataclass(frozen=True)
class Case:
    """The scores by a person and a verifier, in [0, 1]; None if ungradable."""

    kind: str
    is_right: bool
    label: float
    score: float | None
    reason: str | None = None


async def score_cases(
    check: Check,
    label: Label,
    solutions: Sequence[Labelled],
    tools: Tools,
) -> list[Case]:

    async def score_case(solution: Labelled) -> Case:
        score = await VERIFIERS[check.verifier](solution.task, solution.response, check, tools)
        return Case(
            kind=solution.kind,
            is_right=solution.outcome,
            label=float(getattr(solution, label)),
            score=score.value if isinstance(score, Graded) else None,
            reason=score.reason,
        )

    return await asyncio.gather(*map(score_case, solutions))


def summarize(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the agreement over all cases, over those with a right answer, and over each kind.

    ``confusion`` counts the verifier's levels for each level of the person.
    """
    confusion: dict[str, Counter[str]] = {}
    reasons = Counter[str]()
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        level = "ungradable"
        if case.score is None:
            reasons[str(case.reason)] += 1
        else:
            level = f"{round_level(case.score):g}"
        confusion.setdefault(f"{round_level(case.label):g}", Counter())[level] += 1
        kinds.setdefault(case.kind, []).append(case)
    return {
        "all": agreement(cases),
        "right_outcome": agreement([case for case in cases if case.is_right]),
        "ungradable": reasons,
        "confusion": confusion,
        "kinds": {kind: agreement(group) for kind, group in kinds.items()},
    }


def agreement(cases: Sequence[Case]) -> dict[str, float | None]:
    """Return the share of equal levels, and Cohen's linearly weighted kappa, of graded cases."""
    pairs: list[tuple[float, float]] = []
    for case in cases:
        if case.score is not None:
            pairs.append((round_level(case.label), round_level(case.score)))
    same = sum(label == level for label, level in pairs)
    return {
        "n": len(cases),
        "graded": len(pairs),
        "same_level": round(same / len(pairs), 4) if pairs else None,
        "kappa": _kappa(pairs),
    }


def round_level(score: float) -> float:
    """Round to 0, 0.5 or 1, and up in the middle."""
    return math.floor(2 * score + 0.5) / 2


def _kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    observed = sum(abs(label - level) for label, level in pairs)
    labels = Counter(label for label, _ in pairs)
    levels = Counter(level for _, level in pairs)
    expected = 0.0
    for label, level in product(labels, levels):
        expected += labels[label] * levels[level] * abs(label - level)
    return round(1 - observed * len(pairs) / expected, 4) if expected else None
