"""Rubrics: the criteria by which a judge grades a solution, with levels and their scores.

A rubric is a TOML file or a table of a recipe. A judge picks one level per criterion by its name.
It never sees a number, so no text in a solution can talk it into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from protocol.names import Table

# These are the other names in the breakdown of a grade.
_RESERVED = {"analysis", "samples", "reference_left_out", "problem_left_out"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r}: use small letters, digits and '_', at most 32 of them")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Level(Table):
    """One verdict that a judge can give."""

    name: Name = Field(description="the level's name, which the judge sees")
    score: float = Field(ge=0, le=1, description="the level's score, which the judge never sees")
    means: str = Field(min_length=1, description="the level's meaning, which the judge sees")


class Criterion(Table):
    """One question to the judge."""

    name: Name = Field(description="the criterion's name in the breakdown")
    asks: str = Field(min_length=1, description="the question to the judge")
    weight: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="the criterion's weight in the mean"
    )
    levels: tuple[Level, ...] = Field(
        min_length=2, description="the levels, of which at least two have different scores"
    )

    @model_validator(mode="after")
    def _levels_differ(self) -> Self:
        _refuse_repeats([level.name for level in self.levels], "levels")
        if len({level.score for level in self.levels}) < 2:
            raise ValueError("levels: all have the same score, so the criterion decides nothing")
        return self

    @property
    def scores(self) -> dict[str, float]:
        return {level.name: level.score for level in self.levels}


class Cap(Table):
    """A limit of the score if a criterion is at one of the levels."""

    criterion: Name = Field(description="the criterion's name")
    levels: tuple[Name, ...] = Field(min_length=1, description="the levels that limit the score")
    at_most: float = Field(ge=0, lt=1, description="the largest score of a solution")


class Rubric(Table):
    """A weighted mean of criteria, limited by caps."""

    instructions: str = Field(
        min_length=1, description="the judge's instructions before the criteria"
    )
    needs_solution: bool = Field(
        default=True, description="whether a task without `solution` is ungradable"
    )
    analysis_chars: int = Field(
        default=1500,
        ge=0,
        le=20_000,
        description="the length of the judge's analysis in characters; 0: no analysis",
    )
    criteria: tuple[Criterion, ...] = Field(min_length=1, description="the criteria")
    caps: tuple[Cap, ...] = Field(default=(), description="the limits of the score")

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        _refuse_repeats([criterion.name for criterion in self.criteria], "criteria")
        for criterion in self.criteria:
            if criterion.name in _RESERVED:
                raise ValueError(f"criteria: {criterion.name!r} is reserved; choose another name")
        levels = {criterion.name: criterion.scores for criterion in self.criteria}
        for index, cap in enumerate(self.caps):
            if not levels.get(cap.criterion, {}).keys() >= set(cap.levels):
                raise ValueError(
                    f"caps.{index}: {cap.criterion!r} has no level {' or '.join(cap.levels)}; name "
                    "a criterion of this rubric and its levels"
                )
        return self

    def score(self, levels: Mapping[str, str]) -> float:
        """Return the score in [0, 1] of a level per criterion; KeyError if a level is unknown."""
        total = sum(
            criterion.weight * criterion.scores[levels[criterion.name]]
            for criterion in self.criteria
        )
        mean = total / sum(criterion.weight for criterion in self.criteria)
        caps = (cap.at_most for cap in self.caps if levels[cap.criterion] in cap.levels)
        return min(mean, *caps, 1.0)


def _refuse_repeats(names: Sequence[str], field: str) -> None:
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(
            f"{field}: {', '.join(sorted(repeated))} is listed twice; names must differ"
        )
