"""How far one evaluation is from another, against numbers worked out elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.cli.comparison import compare

COUNTS = st.lists(st.integers(0, 4), min_size=2, max_size=20)


def a_result(
    correct: list[int], samples: int = 1, margins: tuple[float, float] = (0.1, 0.1)
) -> dict[str, Any]:
    """An evaluation with so many correct responses per task, and an interval as given."""
    accuracy = sum(correct) / len(correct) / samples
    below, above = margins
    return {
        "step": 0,
        "tasks": len(correct),
        "accuracy": accuracy,
        "accuracy_low": accuracy - below,
        "accuracy_high": accuracy + above,
        "per_task": {f"t{n}": [count, samples] for n, count in enumerate(correct)},
    }


def without_tasks(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "per_task"}


def test_unpaired_it_is_newcombes_hybrid_score_interval() -> None:
    """Newcombe 1998 (unpaired), Table II, method 10: 56/70 less 48/80 is in 0.0524 to 0.3339."""
    first = {"tasks": 80, "accuracy": 0.6, "accuracy_low": 0.4905, "accuracy_high": 0.7004}
    last = {"tasks": 80, "accuracy": 0.8, "accuracy_low": 0.6918, "accuracy_high": 0.8769}
    found = compare(first, last)
    assert found is not None
    assert not found.paired
    assert (found.gain, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=3e-4)


def test_tasks_that_rise_together_narrow_the_interval() -> None:
    first, last = a_result([0, 1, 2, 3] * 5, 4), a_result([1, 2, 3, 4] * 5, 4)
    paired, unpaired = compare(first, last), compare(without_tasks(first), without_tasks(last))
    assert paired is not None
    assert unpaired is not None
    assert (paired.gain, unpaired.gain) == (0.25, 0.25)
    assert paired.paired
    assert paired.tasks == unpaired.tasks == 20
    # r = 1 x 20/21, so 0.1 sqrt(2 (1 - 20/21)) to either side
    assert paired.gain - paired.low == pytest.approx(0.1 * (2 / 21) ** 0.5)
    assert unpaired.gain - unpaired.low == pytest.approx(0.1 * 2**0.5)


def test_the_lower_bound_takes_the_first_ones_upper_margin() -> None:
    first = a_result([1, 1, 0, 0], margins=(0.0, 0.3))
    last = a_result([1, 1, 1, 1], margins=(0.4, 0.0))
    found = compare(first, last)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.0, 0.5))


@given(COUNTS, st.randoms())
def test_the_other_way_round_is_the_same_with_its_sign_changed(
    correct: list[int], random: Any
) -> None:
    later = [random.randint(0, 4) for _ in correct]
    first, last = a_result(correct, 4, (0.1, 0.2)), a_result(later, 4, (0.3, 0.05))
    there, back = compare(first, last), compare(last, first)
    assert there is not None
    assert back is not None
    assert -1 <= there.low <= there.gain <= there.high <= 1
    assert (back.gain, back.low, back.high) == pytest.approx((-there.gain, -there.high, -there.low))


def test_fewer_than_two_tasks_or_no_interval_are_no_comparison() -> None:
    first, last = a_result([1, 0, 0]), a_result([1, 1, 0])
    last["per_task"] = {"t0": last["per_task"]["t0"]}
    assert compare(first, last) is None
    alone = {"tasks": 1, "accuracy": 1.0, "accuracy_low": None, "accuracy_high": None}
    assert compare(alone, alone) is None
