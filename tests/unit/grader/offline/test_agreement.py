"""How far a verifier agrees with labels: the statistics."""

from __future__ import annotations

import pytest

from services.grader.offline.agreement import Case, agreement, level_of, summary


def cases(*pairs: tuple[float, float | None], kind: str = "k") -> list[Case]:
    return [
        Case(kind, label == 1, label, given, None if given is not None else "no_verdict")
        for label, given in pairs
    ]


def test_agreement_is_over_what_was_graded() -> None:
    found = agreement(cases((1, 1), (0, 1), (0, 0), (1, None), (0.5, 0.75)))
    # 0.75, as near to 0.5 as to 1, counts as 1
    assert found == {"n": 5, "graded": 4, "same_level": 0.5, "kappa": 0.3333}


@pytest.mark.parametrize(
    ("score", "level"), [(0, 0), (0.2, 0), (0.25, 0.5), (0.74, 0.5), (0.75, 1), (1, 1)]
)
def test_scores_round_to_levels(score: float, level: float) -> None:
    assert level_of(score) == level


# Two readers of 50 proposals: 20 times yes by both, 15 times no by both (kappa 0.4).
TEXTBOOK = [(1.0, 1.0)] * 20 + [(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 10 + [(0.0, 0.0)] * 15


@pytest.mark.parametrize(
    ("pairs", "kappa"),
    [
        ([(0, 0), (0.5, 0.5), (1, 1)], 1),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], 0),
        ([(0, 1), (1, 0)], -1),
        (TEXTBOOK, 0.4),
        ([(1, 1), (1, 1)], None),
        ([(1, None)], None),
    ],
)
def test_kappa_is_that_of_the_textbook(
    pairs: list[tuple[float, float | None]], kappa: float | None
) -> None:
    assert agreement(cases(*pairs))["kappa"] == kappa


def test_kappa_weighs_a_near_miss_less_than_a_far_one() -> None:
    same = [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)] * 3
    near, far = (agreement(cases(*same, (0, given)))["kappa"] or 0 for given in (0.5, 1))
    assert 1 > near > far > 0


def test_a_summary_says_it_all() -> None:
    found = summary(cases((1, 1), (0, 1), kind="right") + cases((0, None), kind="empty"))
    assert found["ungradable"] == {"no_verdict": 1}
    assert found["confusion"] == {"1": {"1": 1}, "0": {"1": 1, "ungradable": 1}}
    assert found["right_outcome"]["n"] == 1
    assert {kind: each["same_level"] for kind, each in found["kinds"].items()} == {
        "right": 0.5,
        "empty": None,
    }
