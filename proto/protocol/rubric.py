"""A rubric: what a judge looks at in a solution, the levels it may find, and what they are worth.

A rubric is data, a TOML file or a table of a recipe. A judge picks one level per criterion by its
name and never sees a number, so that no text in a solution can talk it into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from protocol.names import Table

_TAKEN = {"analysis", "samples", "reference_left_out", "problem_left_out"}  # of a grade
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r}: use small letters, digits and '_', at most 32 of them")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Level(Table):
    """One verdict that a judge can give."""

    name: Name = Field(description="told to the judge")
    score: float = Field(ge=0, le=1, description="never told to the judge")
    means: str = Field(min_length=1, description="told to the judge")


class Criterion(Table):
    """One question to the judge."""

    name: Name = Field(description="of the part in the breakdown")
    asks: str = Field(min_length=1, description="told to the judge")
    weight: float = Field(default=1.0, ge=1e-6, le=1e6, description="in the weighted mean")
    levels: tuple[Level, ...] = Field(min_length=2, description="at least two, of several scores")

    @model_validator(mode="after")
    def _levels_differ(self) -> Self:
        _refuse_repeats([level.name for level in self.levels], "levels")
        if len({level.score for level in self.levels}) < 2:
            raise ValueError("levels: all have the same score, so the criterion decides nothing")
        return self

    def score_of(self, level: str) -> float:
        return {level.name: level.score for level in self.levels}[level]


class Cap(Table):
    """Limits the score while one criterion is at one of these levels."""

    criterion: Name = Field(description="its name")
    levels: tuple[Name, ...] = Field(min_length=1, description="levels of that criterion")
    at_most: float = Field(ge=0, lt=1, description="the largest score of the whole")


class Rubric(Table):
    """How a solution is graded: the weighted mean of its criteria, limited by caps."""

    instructions: str = Field(min_length=1, description="told to the judge, before the criteria")
    needs_solution: bool = Field(
        default=True, description="a task without `solution` is ungradable"
    )
    analysis_chars: int = Field(
        default=1500,
        ge=0,
        le=20_000,
        description="length of the analysis before the verdict; 0: none",
    )
    criteria: tuple[Criterion, ...] = Field(min_length=1, description="what to look at")
    caps: tuple[Cap, ...] = Field(default=(), description="limits of the score")

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        _refuse_repeats([criterion.name for criterion in self.criteria], "criteria")
        for taken in _TAKEN & {criterion.name for criterion in self.criteria}:
            raise ValueError(f"criteria: {taken!r} means something else; choose another name")
        levels = {
            criterion.name: {level.name for level in criterion.levels}
            for criterion in self.criteria
        }
        for index, cap in enumerate(self.caps):
            if not set(cap.levels) <= levels.get(cap.criterion, set()):
                raise ValueError(
                    f"caps.{index}: {cap.criterion!r} has no level {' or '.join(cap.levels)}; name "
                    "a criterion of this rubric and levels of its own"
                )
        return self

    def score(self, found: Mapping[str, str]) -> float:
        """The worth, in [0, 1], of the level found of each criterion; KeyError if there is none."""
        total = sum(each.weight * each.score_of(found[each.name]) for each in self.criteria)
        mean = total / sum(each.weight for each in self.criteria)
        caps = (cap.at_most for cap in self.caps if found[cap.criterion] in cap.levels)
        return min(mean, *caps, 1.0)


def _refuse_repeats(names: Sequence[str], field: str) -> None:
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(
            f"{field}: {', '.join(sorted(repeated))} is there twice; names must differ"
        )
