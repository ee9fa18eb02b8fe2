"""How far a verifier agrees with labels: the statistics, and the section of a report."""

from __future__ import annotations

import math

import pytest

from services.grader.offline.agreement import (
    Case,
    agreement,
    confusion,
    level_of,
    percentile,
)
from services.grader.offline.calibration import Examined
from services.grader.offline.report import section


def cases(*pairs: tuple[float, float | None], kind: str = "k") -> list[Case]:
    return [Case(kind, label == 1, label, given, ms=1.0) for label, given in pairs]


def test_agreement_is_over_what_was_graded() -> None:
    found = agreement(cases((1, 1), (0, 1), (0, 0), (1, None), (0.5, 0.75)))
    assert (found.num_cases, found.num_graded) == (5, 4)
    assert found.exact == 0.5  # 0.75, as near to 0.5 as to 1, counts as 1
    assert found.close == 0.75
    assert found.error == pytest.approx(1.25 / 4)


@pytest.mark.parametrize(
    ("score", "level"), [(0, 0), (0.2, 0), (0.25, 0.5), (0.74, 0.5), (0.75, 1), (1, 1)]
)
def test_scores_round_to_levels(score: float, level: float) -> None:
    assert level_of(score) == level


def test_kappa_is_one_for_agreement_zero_for_chance_and_below_for_opposites() -> None:
    assert agreement(cases((0, 0), (0.5, 0.5), (1, 1))).kappa == 1
    assert agreement(cases((0, 0), (0, 1), (1, 0), (1, 1))).kappa == pytest.approx(0)
    assert agreement(cases((0, 1), (1, 0))).kappa == -1


def test_kappa_is_that_of_the_textbook() -> None:
    # Two readers of 50 proposals: 20 times yes by both, 15 times no by both (kappa 0.4).
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    assert agreement(cases(*pairs)).kappa == pytest.approx(0.4)


def test_kappa_weighs_a_near_miss_less_than_a_far_one() -> None:
    same = [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)] * 3
    near, far = agreement(cases(*same, (0, 0.5))), agreement(cases(*same, (0, 1)))
    assert 1 > near.kappa > far.kappa > 0


def test_what_says_nothing_is_nan() -> None:
    nothing = agreement(cases((1, None)))
    assert math.isnan(nothing.exact)
    assert math.isnan(nothing.kappa)
    assert math.isnan(agreement(cases((1, 1), (1, 1))).kappa)
    assert math.isnan(percentile([], 0.5))


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]


def test_the_confusion_counts_levels_and_the_ungradable() -> None:
    found = confusion(cases((1, 0.9), (1, None), (0, 0), (0, 0.5), (0, 0.4)))
    assert found == {(1, 1): 1, (1, None): 1, (0, 0): 1, (0, 0.5): 2}


def test_a_section_says_it_all_in_columns() -> None:
    pairs = cases((1, 1), (0, 1), kind="right") + cases((0, None), kind="empty")
    lines = section(Examined("math_answer", "outcome", tuple(pairs))).splitlines()
    assert "math_answer against the labelled outcome" in lines
    assert "  ungradable     33.3 %, 1 None" in lines
    assert "  right              1      0           0" in lines
    assert "  wrong              1      0           1" in lines
    assert "  right  2     50.0 %        0.50" in lines
    assert "  empty  1          -           -" in lines
    assert not any("right outcome" in line for line in lines)


def test_a_process_is_shown_for_the_right_outcomes_too() -> None:
    right = [
        Case("k", True, label, given, ms=1.0) for label, given in ((1, 1), (0, 0), (0, 1), (1, 1))
    ]
    wrong = [Case("k", False, 0, given, ms=1.0) for given in (0.5, 1.0, None)]
    lines = section(Examined("equation_steps", "process", (*right, *wrong))).splitlines()
    start = lines.index("equation_steps against the labelled process")
    assert lines[start + 1 : start + 8] == [
        "                     all  right outcome",
        "  n                    7              4",
        "  within 0.25     50.0 %         75.0 %",
        "  same level      50.0 %         75.0 %",
        "  mean error        0.42           0.25",
        "  weighted kappa    0.29           0.50",
        "",
    ]
    assert lines[start + 8] == "  ungradable   14.3 %, 1 None"
