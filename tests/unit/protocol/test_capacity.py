"""The arithmetic of the most that a job can have under way at once."""

import re
from typing import Any

import pytest
from protocol.capacity import worst_case_bytes, worst_case_in_words

from tests.builders import a_recipe

EVALUATED = {"tasks": {"held_out": "held_out.jsonl"}, "evaluation": {"samples": 3, "tasks": 10}}
DYNAMIC = {"dynamic_sampling": True, "max_oversampling": 2.5}


@pytest.mark.parametrize(
    ("changes", "num_bytes"),
    [
        ({}, 2 * 2 * 2 * 16),  # (max_staleness + 1) x groups x responses x bytes
        ({"training": {"max_staleness": 0}}, 2 * 2 * 16),
        ({"training": {"max_staleness": 3}, **EVALUATED}, (4 * 2 * 2 + 10 * 3) * 16),
        ({"training": DYNAMIC}, 20 * 16),
        ({"training": {**DYNAMIC, "max_oversampling": 99.0}}, 4 * 8 * 16),
        ({"environment": {"command": ["play"]}}, 2 * 2 * 2 * 25),  # whose, and told
    ],
)
def test_every_response_counts_at_full_length_as_the_words_say(
    changes: dict[str, Any], num_bytes: int
) -> None:
    recipe = a_recipe(**changes)
    assert worst_case_bytes(recipe, {"": 50}) == num_bytes * 64
    words = worst_case_in_words(recipe, {"": 50})
    arithmetic = re.sub(r"[a-z][a-z_.]*", "", words.replace(" x ", " * "))
    assert eval(arithmetic) == num_bytes * 64
