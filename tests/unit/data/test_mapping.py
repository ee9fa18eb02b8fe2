"""Values of columns, of whatever type they are, as the fields of a task."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal

import pytest

from services.data.importing import Draft
from services.data.mapping import Dropped, task_fields
from services.data.presets import Preset

PRESET = Preset(keep=("made",))


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (" 7 ", "7"),
        (7, "7"),
        (10**30, f"1{30 * '0'}"),
        (0.5, "0.5"),
        (Decimal("1.50"), "1.50"),
        ([3, 5], "3, 5"),
        (["a", None, "b"], "a, b"),
    ],
)
def test_an_answer_of_any_plain_type_is_its_text(value: object, answer: str) -> None:
    assert task_fields(PRESET, {"problem": "1?", "answer": value})["answer"] == answer


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no answer in 'answer'"),
        (math.nan, "no answer in 'answer'"),
        ([], "no answer in 'answer'"),
        (1.2345678901234568e22, "a number in 'answer' that was rounded when it was read"),
        (-math.inf, "a number in 'answer' that was rounded when it was read"),
    ],
)
def test_an_answer_that_is_none_or_has_lost_digits_makes_no_task(
    value: object, reason: str
) -> None:
    with pytest.raises(Dropped, match=reason):
        task_fields(PRESET, {"problem": "1?", "answer": value})


def test_what_json_cannot_hold_is_kept_as_text() -> None:
    fields = task_fields(PRESET, {"problem": "1?", "answer": "1", "made": date(2026, 1, 2)})
    assert '"metadata": {"made": "2026-01-02"}' in Draft(1, "key", fields).text


@pytest.mark.parametrize(
    ("value", "solution"),
    [
        (["It is 2.", "Or so."], "It is 2."),
        ([{"step": "It is 2."}], '{"step": "It is 2."}'),
        ([None], ""),
        (None, ""),
    ],
)
def test_of_several_solutions_the_first_one_counts(value: object, solution: str) -> None:
    row = {"problem": "1+1?", "answer": "2", "proof": value}
    assert task_fields(Preset(solution=("proof",)), row).get("solution", "") == solution
