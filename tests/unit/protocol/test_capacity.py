"""The arithmetic of what a job can have under way at once."""

from __future__ import annotations

import re

import pytest
from protocol.capacity import (
    evaluation_responses,
    responses_in_flight,
    worst_case_bytes,
    worst_case_in_words,
)
from protocol.recipe import Recipe

from tests.builders import a_recipe

# (1 + 1) x 2 groups x 2 responses x 64 tokens x 16 bytes
TRAINING_BYTES = 8 * 64 * 16
EVALUATED = {"tasks": {"held_out": "held_out.jsonl"}, "evaluation": {"samples": 3}}
DYNAMIC = {"dynamic_sampling": True, "max_oversampling": 2.5}


def test_training_groups_in_flight_count_at_full_length() -> None:
    assert worst_case_bytes(a_recipe(), {"": 50}) == TRAINING_BYTES
    on_policy = a_recipe(training={"max_staleness": 0})
    assert worst_case_bytes(on_policy, {}) == TRAINING_BYTES // 2


@pytest.mark.parametrize(("limit", "evaluated"), [(None, 50), (10, 10), (99, 50)])
def test_one_evaluation_counts_beside_them(limit: int | None, evaluated: int) -> None:
    tasks = {"held_out": "held_out.jsonl"}
    recipe = a_recipe(tasks=tasks, evaluation={"samples": 3, "tasks": limit})
    assert evaluation_responses(recipe, {"": 50}) == evaluated * 3
    expected = TRAINING_BYTES + evaluated * 3 * 64 * 16
    assert worst_case_bytes(recipe, {"": 50}) == expected


def test_dynamic_sampling_has_more_groups_in_flight() -> None:
    assert responses_in_flight(a_recipe()) == 8
    assert responses_in_flight(a_recipe(training=DYNAMIC)) == 20


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(a_recipe(), id="plain"),
        pytest.param(a_recipe(training={"max_staleness": 3}, **EVALUATED), id="evaluated"),
        pytest.param(a_recipe(training=DYNAMIC, **EVALUATED), id="dynamic sampling"),
        pytest.param(a_recipe(training={**DYNAMIC, "max_oversampling": 99.0}), id="most refills"),
    ],
)
def test_the_words_say_the_same_as_the_number(recipe: Recipe) -> None:
    words = worst_case_in_words(recipe, {"": 50})
    arithmetic = re.sub(r"[a-z][a-z_.]*", "", words.replace(" x ", " * "))
    assert eval(arithmetic) == worst_case_bytes(recipe, {"": 50})
