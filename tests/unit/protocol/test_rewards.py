"""A reward names its verifiers as briefly as it can, and what makes no sense is refused by name."""

import tomllib

import pytest
from protocol.recipe import Recipe
from protocol.recipe_files import RecipeError
from protocol.rewards import Check, MathAnswer, ModelJudge, Reward, ScoreModel, StringCheck
from protocol.rubric import Rubric
from pydantic import ValidationError

from tests.builders import a_recipe
from tests.tables import table

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
SCORE = "verifier = 'score_model', input = [{ role = 'user', content = '?' }]"
NAMED = "{ verifier = 'math_answer', name = 'a' }, { verifier = 'math_answer', name = 'b' }"
WORDS = {
    "JUDGE": "verifier = 'model_judge'",
    "RULE": "verifier = 'math_answer'",
    "STEPS": "verifier = 'equation_steps'",
    "SCORE": SCORE,
    "NAMED": NAMED,
    " ; ": "\n",
}


def reward(settings: str) -> Reward:
    return a_recipe(reward=tomllib.loads(settings)).reward


def test_a_name_is_a_check_without_settings() -> None:
    checks = (Check(verifier="equation_steps"),)
    for process in ("'equation_steps'", "['equation_steps']", f"{{ {WORDS['STEPS']} }}"):
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


@table("""
    settings                                               | problem
    outcome = []                                           | reward.outcome:
    process = 'oracle' | reward.process.0.verifier: 'oracle' is none of math_answer
    process = { STEPS, rubric = 'proof' }                  | reward.process.0.rubric: unknown key
    process = { JUDGE, rubric = 'holistc' }                | reward.process.0.rubric: 'holistc' is
    process = { JUDGE, samples = 2 }                       | reward.process.0: samples = 2
    process = { SCORE, range = [1, 1] }                    | reward.process.0: range
    process = ['equation_steps', 'equation_steps']         | process: two checks have the same name
    process = { RULE, if_ungradable = 'leave_out' }        | the only check
    process = [{ STEPS, sees = 'correct' }]                | process: some check must see all
    process = ['equation_steps', { JUDGE, sees = 'correct' }] ; process_for = 'correct' | nothing
    outcome = ['math_answer', { JUDGE, sees = 'correct' }] | is not known before it
    process = { STEPS, weight = inf }                      | reward.process.0.weight:
    values = [0, nan]                                      | reward.values.1:
    outcome = [NAMED] ; formula = 'a + c'                  | 'c' is none of
    outcome = [NAMED] ; formula = 'a'                      | 'b' is not used
    outcome = [NAMED] ; formula = 'a +'                    | no formula
    outcome = [NAMED, { RULE, name = 'c', weight = 2 }] ; formula = 'a*b*c' | nothing
""")
def test_a_reward_that_makes_no_sense_is_refused_by_name(settings: str, problem: str) -> None:
    for name, text in WORDS.items():
        settings = settings.replace(name, text)
    with pytest.raises(RecipeError) as caught:
        reward(settings)
    assert problem in str(caught.value)


# ---------------------------------------------------------------------- rubrics

LEVELS = """asks = "How is it?", levels = [
    { name = "good", score = 1, means = "so" },
    { name = "fair", score = 0.5, means = "so" },
    { name = "bad", score = 0, means = "so" },
]"""


def parse_rubric(settings: str) -> Rubric:
    """A rubric in TOML, where a criterion may have the three levels of ``LEVELS``."""
    tables = tomllib.loads(settings.replace("LEVELS", LEVELS))
    return Rubric.model_validate({"instructions": "Grade.", **tables})


def test_several_criteria_are_a_weighted_mean() -> None:
    rubric = parse_rubric("""criteria = [
        { name = "coverage", weight = 4, LEVELS },
        { name = "rigor", weight = 2, LEVELS },
        { name = "clarity", LEVELS },
    ]""")
    levels = {"coverage": "fair", "rigor": "good", "clarity": "bad"}
    assert rubric.score(levels) == pytest.approx((4 * 0.5 + 2) / 7)
    assert rubric.score(dict.fromkeys(levels, "good")) == 1
    with pytest.raises(KeyError):
        rubric.score(levels | {"rigor": "excellent"})


def test_a_cap_bounds_the_whole() -> None:
    rubric = parse_rubric("""
        criteria = [{ name = "coverage", weight = 9, LEVELS }, { name = "rigor", LEVELS }]
        caps = [{ criterion = "rigor", levels = ["bad"], at_most = 0.3 }]
    """)
    assert rubric.score({"coverage": "good", "rigor": "bad"}) == 0.3
    assert rubric.score({"coverage": "bad", "rigor": "bad"}) == 0
    assert rubric.score({"coverage": "good", "rigor": "fair"}) == pytest.approx(0.95)


SAME = 'levels = [{ name = "a", score = 1, means = "x" }, { name = "b", score = 1, means = "x" }]'
CAP = "caps = [{ criterion = 'b', levels = ['bad'], at_most = 0.5 }]"


@table(
    """
    settings                                                    | problem
    criteria = [{ name = 'Rigor', LEVELS }]                     | small letters
    criteria = [{ name = 'analysis', LEVELS }]                  | 'analysis'
    criteria = [{ name = 'a', LEVELS }, { name = 'a', LEVELS }] | twice
""",
    (f"criteria = [{{ name = 'a', asks = '?', {SAME} }}]", "nothing"),
    (
        f"criteria = [{{ name = 'a', asks = '?', {SAME.replace('1', '2', 1)} }}]",
        r"levels\.0\.score",
    ),
    (f"criteria = [{{ name = 'a', LEVELS }}]\n{CAP}", "caps.0: 'b'"),
)
def test_a_rubric_that_cannot_be_used_is_refused(settings: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        parse_rubric(settings)
