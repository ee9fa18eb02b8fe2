"""How far a verifier agrees with labels: the statistics."""

from __future__ import annotations

import pytest

from services.grader.offline.calibration import Case, agreement, level_of, summary

Pairs = list[tuple[float, float | None]]  # a label and what was given


def cases(pairs: Pairs, kind: str = "k") -> list[Case]:
    return [
        Case(kind, label == 1, label, given, None if given is not None else "no_verdict")
        for label, given in pairs
    ]


def test_scores_round_to_levels_and_the_upper_of_two_that_are_as_near() -> None:
    assert list(map(level_of, (0, 0.2, 0.25, 0.74, 0.75, 1))) == [0, 0, 0.5, 0.5, 1, 1]


# Two readers of 50 proposals: 20 times yes by both, 15 times no by both (kappa 0.4).
TEXTBOOK = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
SAME: Pairs = [(0, 0), (0.5, 0.5), (1, 1)]


@pytest.mark.parametrize(
    ("pairs", "kappa"),
    [
        (SAME, 1),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], 0),
        ([(0, 1), (1, 0)], -1),
        (TEXTBOOK, 0.4),
        ([*SAME * 3, (0, 0.5)], 0.8864),  # a near miss weighs less
        ([*SAME * 3, (0, 1)], 0.7826),  # than a far one
        ([(1, 1), (1, 1)], None),
        ([(1, None)], None),
    ],
)
def test_kappa_is_that_of_the_textbook(pairs: Pairs, kappa: float | None) -> None:
    assert agreement(cases(pairs))["kappa"] == kappa


def test_a_summary_says_it_all_of_what_was_graded() -> None:
    right = cases([(1, 1), (0, 1), (0, 0), (0.5, 0.75)], kind="right")
    found = summary(right + cases([(1, None)], kind="empty"))
    assert found["all"] == {"n": 5, "graded": 4, "same_level": 0.5, "kappa": 0.3333}
    assert found["ungradable"] == {"no_verdict": 1}
    assert found["confusion"] == {
        "1": {"1": 1, "ungradable": 1},
        "0": {"1": 1, "0": 1},
        "0.5": {"1": 1},
    }
    assert found["right_outcome"]["n"] == 2
    assert [(kind, each["same_level"]) for kind, each in found["kinds"].items()] == [
        ("right", 0.5),
        ("empty", None),
    ]
