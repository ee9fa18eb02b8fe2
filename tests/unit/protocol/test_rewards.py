"""A reward names its verifiers as briefly as it can, and what makes no sense is refused by name."""

import tomllib

import pytest
from protocol.recipe import Recipe, RecipeError
from protocol.rewards import Check, MathAnswer, ModelJudge, Reward, ScoreModel, StringCheck

from tests.builders import a_recipe

RUBRIC = """
instructions = "Grade the proof."
[[criteria]]
name = "rigor"
asks = "Is each step justified?"
levels = [
  { name = "complete", score = 1, means = "nothing is missing" },
  { name = "wrong", score = 0, means = "it does not work" },
]
"""
STEPS = "{ verifier = 'equation_steps' }"
SCORE = "verifier = 'score_model', input = [{ role = 'user', content = '?' }]"
NAMED = "{ verifier = 'math_answer', name = 'a' }, { verifier = 'math_answer', name = 'b' }"


def reward(settings: str) -> Reward:
    return a_recipe(reward=tomllib.loads(settings)).reward


def test_a_name_is_a_check_without_settings() -> None:
    checks = (Check(verifier="equation_steps"),)
    for process in ("'equation_steps'", "['equation_steps']", STEPS):
        assert reward(f"process = {process}").process == checks
    assert Reward.model_validate({"process": None}).process == ()
    assert Reward().outcome == (MathAnswer(),)


def test_a_check_has_the_class_of_its_verifier_and_survives_its_journey() -> None:
    oracle = "{ verifier = 'my_lab.oracle', settings.depth = 3 }"
    tables = tomllib.loads(f"process = ['model_judge', {oracle}, {{ {SCORE} }}, 'string_check']")
    judge = {"verifier": "model_judge", "rubric": tomllib.loads(RUBRIC)}
    tables["process"][0] = judge | {"if_ungradable": "leave_out"}
    recipe = a_recipe(reward=tables)
    kinds = [type(check) for check in recipe.reward.process]
    assert kinds == [ModelJudge, Check, ScoreModel, StringCheck]
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    judged = [check.verifier for check in recipe.reward.judge_checks]
    assert judged == ["model_judge", "score_model"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("outcome = []", "reward.outcome: "),
        ("process = 'oracle'", "reward.process.0.verifier: 'oracle' is none of math_answer"),
        (
            "process = { verifier = 'equation_steps', rubric = 'proof' }",
            "reward.process.0.rubric: unknown key",
        ),
        (
            "process = { verifier = 'model_judge', rubric = 'holistc' }",
            "reward.process.0.rubric: 'holistc' is none",
        ),
        ("process = { verifier = 'model_judge', samples = 2 }", "reward.process.0: samples = 2"),
        (f"process = {{ {SCORE}, range = [1, 1] }}", "reward.process.0: range"),
        (
            "process = ['equation_steps', 'equation_steps']",
            "reward: process: two checks have the same name",
        ),
        (
            "process = { verifier = 'equation_steps', if_ungradable = 'leave_out' }",
            "the only check cannot be left out",
        ),
        (
            "process = [{ verifier = 'equation_steps', sees = 'correct' }]",
            "reward: process: some check must see all",
        ),
        (
            f"process = [{STEPS}, {{ verifier = 'model_judge', sees = 'correct' }}]\n"
            "process_for = 'correct'",
            "reward: process: sees = 'correct' does nothing",
        ),
        (
            "outcome = ['math_answer', { verifier = 'model_judge', sees = 'correct' }]",
            "correctness is not known before it",
        ),
        (
            "process = { verifier = 'equation_steps', weight = inf }",
            "reward.process.0.weight: ",
        ),
        ("values = [0, nan]", "reward.values.1: "),
        (f"outcome = [{NAMED}]\nformula = 'a + c'", "'c' is none of"),
        (f"outcome = [{NAMED}]\nformula = 'a'", "'b' is not used"),
        (f"outcome = [{NAMED}]\nformula = 'a +'", "no formula"),
        (
            "outcome = [{ verifier = 'math_answer', name = 'a', weight = 2 }, 'equation_steps']\n"
            "formula = 'a * equation_steps'",
            "do nothing",
        ),
    ],
)
def test_a_reward_that_makes_no_sense_is_refused_by_name(settings: str, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        reward(settings)
    assert problem in str(caught.value)
