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


def advantages_of(recipe: Recipe, responses: Sequence[Response]) -> list[float]:
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


def is_correct_below_wrong(recipe: Recipe, group: Sequence[Response]) -> bool:
    """Whether a correct response of a group gets less than a wrong one."""
    found = list(zip(group, advantages_of(recipe, group), strict=True))
    correct = [advantage for (accuracy, _), advantage in found if accuracy]
    wrong = [advantage for (accuracy, _), advantage in found if not accuracy]
    return bool(correct and wrong) and min(correct) < max(wrong) - 1e-5


@pytest.mark.parametrize("process_for", ["correct", "all"])
@pytest.mark.parametrize("values", [(0, 1), (-1, 1), (0.5, 1), (-1, 0), (-1, 0.5), (-2, -1)])
def test_a_product_is_warned_of_exactly_where_some_group_is_out_of_order(
    values: tuple[float, float], process_for: str
) -> None:
    reward = {"values": values, "process_for": process_for}
    recipe = a_recipe(algorithm={"advantage": "multiplicative"}, reward=reward)
    advantages = [advantages_of(recipe, pair) for pair in PAIRS]
    warnings = order_warnings(recipe)
    assert len(warnings) == any(better < worse for worse, better in advantages)
    assert all("reward.values" in text for text in warnings)


@pytest.mark.parametrize(
    ("process_for", "lambda_process", "warned"),
    [("all", 1.0, 1), ("all", 0.71, 1), ("all", 0.7, 0), ("correct", 50.0, 0)],
)
def test_normalizing_over_the_whole_group_is_warned_of_where_wrong_answers_are_judged(
    process_for: str, lambda_process: float, warned: int
) -> None:
    recipe = a_recipe(
        algorithm={"advantage": "papo_full_norm", "lambda_process": lambda_process},
        rollout={"group_size": 4},
        reward={"process_for": process_for},
    )
    assert len(order_warnings(recipe)) == warned
    groups = [(*one, *other) for one, other in product(PAIRS, PAIRS)]
    assert any(is_correct_below_wrong(recipe, group) for group in groups) == warned


@pytest.mark.parametrize(
    ("algorithm", "warned"),
    [
        ({"advantage": "papo", "ddof": 1, "lambda_process": 1.05}, 0),
        ({"advantage": "papo", "ddof": 0, "lambda_process": 1.05}, 1),
        ({"advantage": "process_only"}, 0),
    ],
)
def test_papo_is_warned_of_by_its_ddof_and_an_order_that_is_meant_is_not(
    algorithm: dict[str, Any], warned: int
) -> None:
    everywhere = {"process_for": "all"}
    recipe = a_recipe(algorithm=algorithm, rollout={"group_size": 8}, reward=everywhere)
    assert len(order_warnings(recipe)) == warned
