"""A rubric turns the levels that a judge has chosen into one number."""

import tomllib

import pytest
from protocol.rubric import Rubric
from pydantic import ValidationError

from tests.tables import table

LEVELS = """asks = "How is it?", levels = [
    { name = "good", score = 1, means = "so" },
    { name = "fair", score = 0.5, means = "so" },
    { name = "bad", score = 0, means = "so" },
]"""


def parse_rubric(settings: str) -> Rubric:
    """A rubric in TOML, where a criterion may have the three levels of ``LEVELS``."""
    tables = tomllib.loads(settings.replace("LEVELS", LEVELS))
    return Rubric.model_validate({"instructions": "Grade.", **tables})


def test_several_criteria_are_a_weighted_mean() -> None:
    rubric = parse_rubric("""criteria = [
        { name = "coverage", weight = 4, LEVELS },
        { name = "rigor", weight = 2, LEVELS },
        { name = "clarity", LEVELS },
    ]""")
    levels = {"coverage": "fair", "rigor": "good", "clarity": "bad"}
    assert rubric.score(levels) == pytest.approx((4 * 0.5 + 2) / 7)
    assert rubric.score(dict.fromkeys(levels, "good")) == 1
    with pytest.raises(KeyError):
        rubric.score(levels | {"rigor": "excellent"})


def test_a_cap_bounds_the_whole() -> None:
    rubric = parse_rubric("""
        criteria = [{ name = "coverage", weight = 9, LEVELS }, { name = "rigor", LEVELS }]
        caps = [{ criterion = "rigor", levels = ["bad"], at_most = 0.3 }]
    """)
    assert rubric.score({"coverage": "good", "rigor": "bad"}) == 0.3
    assert rubric.score({"coverage": "bad", "rigor": "bad"}) == 0
    assert rubric.score({"coverage": "good", "rigor": "fair"}) == pytest.approx(0.95)


SAME = 'levels = [{ name = "a", score = 1, means = "x" }, { name = "b", score = 1, means = "x" }]'
CAP = "caps = [{ criterion = 'b', levels = ['bad'], at_most = 0.5 }]"


@table(
    """
    settings                                                    | problem
    criteria = [{ name = 'Rigor', LEVELS }]                     | small letters
    criteria = [{ name = 'analysis', LEVELS }]                  | 'analysis'
    criteria = [{ name = 'a', LEVELS }, { name = 'a', LEVELS }] | twice
""",
    (f"criteria = [{{ name = 'a', asks = '?', {SAME} }}]", "nothing"),
    (
        f"criteria = [{{ name = 'a', asks = '?', {SAME.replace('1', '2', 1)} }}]",
        r"levels\.0\.score",
    ),
    (f"criteria = [{{ name = 'a', LEVELS }}]\n{CAP}", "caps.0: 'b'"),
)
def test_a_rubric_that_cannot_be_used_is_refused(settings: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        parse_rubric(settings)
