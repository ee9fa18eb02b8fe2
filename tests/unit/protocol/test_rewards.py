"""A reward names its verifiers as briefly as it can, and what makes no sense is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from protocol.recipe import Recipe, RecipeError
from protocol.rewards import Check, MathAnswer, ModelJudge, Reward, StringCheck
from protocol.rubric import Rubric

from tests.builders import a_recipe

LEVELS = [
    {"name": "complete", "score": 1, "means": "nothing is missing"},
    {"name": "wrong", "score": 0, "means": "it does not work"},
]
RUBRIC: dict[str, Any] = {
    "instructions": "Grade the proof.",
    "criteria": [{"name": "rigor", "asks": "Is each step justified?", "levels": LEVELS}],
}
STEPS, JUDGE = {"verifier": "equation_steps"}, {"verifier": "model_judge"}
SCORE = {"verifier": "score_model", "input": [{"role": "user", "content": "?"}]}


def reward(**settings: Any) -> Reward:
    return a_recipe(reward=settings).reward


def refusal(**settings: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        reward(**settings)
    return str(caught.value)


def test_a_name_is_a_check_without_settings() -> None:
    checks = (Check(verifier="equation_steps"),)
    assert reward(process="equation_steps").process == checks
    assert reward(process={"verifier": "equation_steps"}).process == checks
    assert reward(process=["equation_steps"]).process == checks
    assert Reward.model_validate({"process": None}).process == ()
    assert Reward().outcome == (MathAnswer(),)


def test_a_verifier_with_settings_gets_a_class_of_its_own() -> None:
    both = reward(outcome="string_check", process={"verifier": "model_judge", "rubric": RUBRIC})
    assert isinstance(both.outcome[0], StringCheck)
    judge = both.process[0]
    assert isinstance(judge, ModelJudge)
    assert isinstance(judge.rubric, Rubric)
    assert judge.rubric.criteria[0].name == "rigor"


def test_a_recipe_with_checks_survives_its_journey() -> None:
    recipe = a_recipe(
        reward={
            "process": [
                {"verifier": "model_judge", "rubric": RUBRIC, "if_ungradable": "leave_out"},
                {"verifier": "my_lab.oracle", "settings": {"depth": 3}},
                {"verifier": "score_model", "input": [{"role": "user", "content": "{{item.id}}"}]},
            ]
        }
    )
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("check", "needs"),
    [("model_judge", True), ("equation_steps", False), ("text_similarity", False)],
)
def test_a_reward_knows_whether_it_needs_a_judge(check: str, needs: bool) -> None:
    for settings in ({"process": check}, {"outcome": check, "process": "string_check"}):
        asked = reward(**settings).checks_of_a_judge
        assert [each.verifier for each in asked] == [check] * needs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outcome": []}, "reward.outcome: "),
        ({"process": "oracle"}, "reward.process.0.verifier: 'oracle' is none of math_answer"),
        ({"process": STEPS | {"rubric": "proof"}}, "reward.process.0.rubric: unknown key"),
        ({"process": JUDGE | {"rubric": "holistc"}}, "reward.process.0.rubric: 'holistc' is none"),
        ({"process": JUDGE | {"samples": 2}}, "reward.process.0: samples = 2"),
        ({"process": SCORE | {"range": [1, 1]}}, "reward.process.0: range"),
        ({"process": ["equation_steps"] * 2}, "reward: process: two checks have one name"),
        ({"process": STEPS | {"if_ungradable": "leave_out"}}, "the only check cannot be left out"),
        ({"process": [STEPS | {"sees": "correct"}]}, "reward: process: some check must see all"),
        (
            {"process": [STEPS, JUDGE | {"sees": "correct"}], "process_for": "correct"},
            "reward: process: sees = 'correct' does nothing",
        ),
        ({"outcome": ["math_answer", JUDGE | {"sees": "correct"}]}, "known only after it"),
        ({"process": STEPS | {"weight": math.inf}}, "reward.process.0.weight: "),
        ({"values": [0, math.nan]}, "reward.values.1: "),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(**settings)
