"""Groups for hypothesis: any outcome, any process scores, some of them missing."""

from __future__ import annotations

from hypothesis import strategies as st

from services.learner.algorithms.advantages import GroupScores
from tests.unit.learner.algorithms.random_cases import scores_of
from tests.unit.learner.algorithms.reference import Group

SCORES = st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])
MAYBE_SCORES = st.none() | SCORES


def group_of(
    outcome: list[float],
    process: list[float | None] | None = None,
    penalty: list[float] | None = None,
) -> Group:
    """A group where what pays 1 is correct."""
    return Group(
        outcome=list(outcome),
        correct=[value == 1 for value in outcome],
        process=[None] * len(outcome) if process is None else list(process),
        penalty=[0.0] * len(outcome) if penalty is None else list(penalty),
    )


def scores(
    outcome: list[float],
    process: list[float | None] | None = None,
    penalty: list[float] | None = None,
) -> GroupScores:
    """`group_of` as the code under test takes it."""
    return scores_of(group_of(outcome, process, penalty))


@st.composite
def groups(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    max_size: int = 12,
    process: st.SearchStrategy[float | None] = MAYBE_SCORES,
    punished: bool = True,
) -> Group:
    """Outcomes of 0 and 1, with process scores and punishments."""
    size = draw(st.integers(min_size, max_size))

    def some(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=size, max_size=size))

    penalties = st.sampled_from([0.0, -0.25, -1.0]) if punished else st.just(0.0)
    return group_of(some(st.sampled_from([0.0, 1.0])), some(process), some(penalties))
