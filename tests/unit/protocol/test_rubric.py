"""A rubric turns the levels that a judge has found into one number."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.rubric import Rubric
from pydantic import ValidationError


def a_criterion(name: str, weight: float = 1.0, **scores: float) -> dict[str, Any]:
    scores = scores or {"good": 1, "fair": 0.5, "bad": 0}
    levels = [{"name": name, "score": score, "means": "so"} for name, score in scores.items()]
    return {"name": name, "asks": "How is it?", "weight": weight, "levels": levels}


def a_rubric(*criteria: dict[str, Any], **changes: Any) -> Rubric:
    return Rubric.model_validate({"instructions": "Grade.", "criteria": criteria, **changes})


def test_several_criteria_are_a_weighted_mean() -> None:
    rubric = a_rubric(a_criterion("coverage", 4), a_criterion("rigor", 2), a_criterion("clarity"))
    found = {"coverage": "fair", "rigor": "good", "clarity": "bad"}
    assert rubric.score(found) == pytest.approx((4 * 0.5 + 2) / 7)
    assert rubric.score(dict.fromkeys(found, "good")) == 1
    with pytest.raises(KeyError):
        rubric.score(found | {"rigor": "excellent"})


def test_a_cap_bounds_the_whole() -> None:
    cap = {"criterion": "rigor", "levels": ["bad"], "at_most": 0.3}
    rubric = a_rubric(a_criterion("coverage", 9), a_criterion("rigor"), caps=[cap])
    assert rubric.score({"coverage": "good", "rigor": "bad"}) == 0.3
    assert rubric.score({"coverage": "bad", "rigor": "bad"}) == 0
    assert rubric.score({"coverage": "good", "rigor": "fair"}) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("rubric", "message"),
    [
        ({"criteria": [a_criterion("Rigor")]}, "small letters"),
        ({"criteria": [a_criterion("analysis")]}, "'analysis'"),
        ({"criteria": [a_criterion("a"), a_criterion("a")]}, "twice"),
        ({"criteria": [a_criterion("a", good=1, fine=1)]}, "nothing"),
        ({"criteria": [a_criterion("a", good=2, bad=0)]}, "score"),
        ({"caps": [{"criterion": "b", "levels": ["bad"], "at_most": 0.5}]}, "caps.0: 'b'"),
    ],
)
def test_a_rubric_that_cannot_be_used_is_refused(rubric: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Rubric.model_validate({"instructions": "x", "criteria": [a_criterion("a")], **rubric})
