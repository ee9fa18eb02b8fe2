"""The arithmetic of a job's worst case in Redis."""

from __future__ import annotations

import pytest

from services.gateway.errors import Problem
from services.gateway.memory import check_memory, worst_case_bytes
from tests.builders import a_recipe

# (1 + 1) x 2 groups x 2 responses x 64 tokens x 16 bytes
TRAINING_BYTES = 8 * 64 * 16


def test_training_groups_in_flight_count_at_full_length() -> None:
    assert worst_case_bytes(a_recipe(), num_held_out=50) == TRAINING_BYTES
    on_policy = a_recipe(training={"max_staleness": 0})
    assert worst_case_bytes(on_policy, num_held_out=0) == TRAINING_BYTES // 2


@pytest.mark.parametrize(("limit", "evaluated"), [(None, 50), (10, 10), (99, 50)])
def test_one_evaluation_counts_beside_them(limit: int | None, evaluated: int) -> None:
    tasks = {"held_out": "held_out.jsonl"}
    recipe = a_recipe(tasks=tasks, evaluation={"samples": 3, "tasks": limit})
    expected = TRAINING_BYTES + evaluated * 3 * 64 * 16
    assert worst_case_bytes(recipe, num_held_out=50) == expected


def test_half_of_the_limit_is_allowed_and_not_a_byte_more() -> None:
    check_memory(a_recipe(), 0, None)
    check_memory(a_recipe(), 0, 2 * TRAINING_BYTES)
    with pytest.raises(Problem, match=r"8,192 bytes in Redis .* maxmemory of 16,383: .*16 bytes"):
        check_memory(a_recipe(), 0, 2 * TRAINING_BYTES - 1)
