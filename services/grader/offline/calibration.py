"""How far verifiers agree with a person: their scores of solutions that a person has graded."""

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
    """What a person says of a response; ``process`` is the worth of the reasoning, in [0, 1]."""

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
    """What a person and a verifier say, in [0, 1]; None: ungradable, for a reason."""

    kind: str
    is_right: bool
    label: float
    given: float | None
    reason: str | None = None


async def cases_of(
    check: Check, label: Label, solutions: Sequence[Labelled], tools: Tools
) -> list[Case]:

    async def case_of(solution: Labelled) -> Case:
        score = await VERIFIERS[check.verifier](solution.task, solution.response, check, tools)
        given = score.value if isinstance(score, Graded) else None
        labelled = float(getattr(solution, label))
        return Case(solution.kind, solution.outcome, labelled, given, score.reason)

    return await asyncio.gather(*map(case_of, solutions))


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """The agreement over all cases, over those with a right answer, and over each kind.

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
    """The share of equal levels, and Cohen's linearly weighted kappa, of what was graded."""
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
    observed = sum(abs(label - given) for label, given in pairs)
    labels, answers = Counter(label for label, _ in pairs), Counter(given for _, given in pairs)
    by_chance = sum(
        labels[label] * answers[given] * abs(label - given)
        for label, given in product(labels, answers)
    )
    return round(1 - observed * len(pairs) / by_chance, 4) if by_chance else None
