"""Which recipes can rank a correct response below a wrong one, and are warned of."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest
from protocol.messages import Grade, Graded
from protocol.recipe import Recipe

from services.learner.ordering import order_warnings
from services.learner.training.scoring import Scoring
from tests.builders import a_recipe

Response = tuple[float, float]  # its accuracy and its process score
PAIRS = list(combinations(product((0.0, 1.0), (0.0, 0.5, 1.0)), 2))  # the worse one first


def compute_advantages(recipe: Recipe, responses: Sequence[Response]) -> list[float]:
    judges_all = recipe.reward.process_for == "all"
    grades = [
        Grade(
            outcome=Graded(value=accuracy),
            process=Graded(value=process) if accuracy or judges_all else None,
        )
        for accuracy, process in responses
    ]
    scoring = Scoring.of(recipe)
    return scoring.advantage(scoring.scores(grades, [1] * len(grades))).tolist()


@pytest.mark.parametrize("process_for", ["correct", "all"])
@pytest.mark.parametrize(
    "values",
    [
        (0, 1),
        (-1, 1),
        (0.5, 1),
        (-1, 0),
        (-1, 0.5),
        (-2, -1),
    ],
)
def test_a_product_is_warned_of_exactly_where_some_group_is_out_of_order(
    values: tuple[float, float], process_for: str
) -> None:
    reward = {"values": values, "process_for": process_for}
    recipe = a_recipe(algorithm={"advantage": "multiplicative"}, reward=reward)
    advantages = [compute_advantages(recipe, pair) for pair in PAIRS]
    warnings = order_warnings(recipe)
    assert len(warnings) == any(better < worse for worse, better in advantages)
    assert all("reward.values" in text for text in warnings)


@pytest.mark.parametrize(
    ("algorithm", "process_for", "warned"),
    [
        ({"advantage": "papo", "ddof": 1, "lambda_process": 1.05}, "all", 0),
        ({"advantage": "papo", "ddof": 0, "lambda_process": 1.05}, "all", 1),
        ({"advantage": "papo_full_norm", "lambda_process": 0.51}, "all", 1),
        ({"advantage": "papo_full_norm", "lambda_process": 0.5}, "all", 0),
        ({"advantage": "papo_full_norm", "lambda_process": 50.0}, "correct", 0),
        ({"advantage": "process_only"}, "all", 0),  # an order that is meant
    ],
)
def test_a_weight_is_warned_of_above_the_bound_of_its_advantage(
    algorithm: dict[str, Any], process_for: str, warned: int
) -> None:
    where = {"process_for": process_for}
    recipe = a_recipe(
        algorithm=algorithm,
        rollout={"group_size": 8},
        reward=where,
    )
    assert len(order_warnings(recipe)) == warned
