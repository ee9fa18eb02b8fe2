"""A reward names its verifiers as briefly as it can, and what makes no sense is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from protocol.recipe import Recipe, RecipeError
from protocol.rewards import Check, MathAnswer, ModelJudge, Reward, ScoreModel, StringCheck

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
NAMED = [{"verifier": "math_answer", "name": name} for name in "ab"]
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


def test_a_check_has_the_class_of_its_verifier_and_survives_its_journey() -> None:
    checks = [
        {"verifier": "model_judge", "rubric": RUBRIC, "if_ungradable": "leave_out"},
        {"verifier": "my_lab.oracle", "settings": {"depth": 3}},
        SCORE,
        "string_check",
    ]
    recipe = a_recipe(reward={"process": checks})
    kinds = [type(check) for check in recipe.reward.process]
    assert kinds == [ModelJudge, Check, ScoreModel, StringCheck]
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    verifiers = [check.verifier for check in recipe.reward.judge_checks]
    assert verifiers == ["model_judge", "score_model"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outcome": []}, "reward.outcome: "),
        ({"process": "oracle"}, "reward.process.0.verifier: 'oracle' is none of math_answer"),
        ({"process": STEPS | {"rubric": "proof"}}, "reward.process.0.rubric: unknown key"),
        ({"process": JUDGE | {"rubric": "holistc"}}, "reward.process.0.rubric: 'holistc' is none"),
        ({"process": JUDGE | {"samples": 2}}, "reward.process.0: samples = 2"),
        ({"process": SCORE | {"range": [1, 1]}}, "reward.process.0: range"),
        ({"process": ["equation_steps"] * 2}, "reward: process: two checks have the same name"),
        ({"process": STEPS | {"if_ungradable": "leave_out"}}, "the only check cannot be left out"),
        ({"process": [STEPS | {"sees": "correct"}]}, "reward: process: some check must see all"),
        (
            {"process": [STEPS, JUDGE | {"sees": "correct"}], "process_for": "correct"},
            "reward: process: sees = 'correct' does nothing",
        ),
        (
            {"outcome": ["math_answer", JUDGE | {"sees": "correct"}]},
            "correctness is not known before it",
        ),
        ({"process": STEPS | {"weight": math.inf}}, "reward.process.0.weight: "),
        ({"values": [0, math.nan]}, "reward.values.1: "),
        ({"outcome": NAMED, "formula": "a + c"}, "'c' is none of"),
        ({"outcome": NAMED, "formula": "a"}, "'b' is not used"),
        ({"outcome": NAMED, "formula": "a +"}, "no formula"),
        ({"outcome": [NAMED[0], NAMED[1] | {"weight": 2}], "formula": "a * b"}, "do nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(**settings)
