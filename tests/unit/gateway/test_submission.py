"""A REST body becomes a recipe, with defaults for missing fields."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from protocol.capacity import worst_case_bytes
from protocol.exchange.connection import Memory
from protocol.recipe import Recipe, load_recipe
from protocol.recipe_files import merge_tables
from protocol.tasks import MAX_DEPTH
from pydantic import ValidationError

from services.chassis.deployment import DeploymentError
from services.gateway.api.openai.body import MAX_VALUES, find_problems
from services.gateway.api.openai.submission import JobRequest, build_recipe
from services.gateway.api.page.recipe_text import RecipeTextError, read_recipe
from services.gateway.api.page.routes import example_recipes
from services.gateway.core.jobs.refusals import check_free_memory, check_memory_need, check_recipe
from services.gateway.core.jobs.submission import load_defaults
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts
from services.gateway.errors import Problem, explain_body
from tests.builders import a_recipe
from tests.tables import table
from tests.unit.gateway.graders import EXACT
from tests.unit.gateway.refusing import refused


def the_recipe(
    tables: dict[str, Any] | None = None,
    *,
    num_tasks: int = 100,
    facts: ModelFacts = UNKNOWN_FACTS,
    defaults: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    grader: Any = EXACT,
    **hyperparameters: Any,
) -> Recipe:
    settings = {"grader": grader, "hyperparameters": hyperparameters}
    plain = {
        "model": "tiny",
        "training_file": "file-1",
        "recipe": tables or {},
        "method": {"type": "reinforcement", "reinforcement": settings},
    }
    request = JobRequest.model_validate(plain | (body or {}))
    return build_recipe(request, "/models/tiny", num_tasks, facts=facts, defaults=defaults or {})


def test_the_body_is_kept_as_it_came() -> None:
    body = {"model": "tiny", "training_file": "file-1", "recipe": {"model": {}}, "seed": 3}
    assert JobRequest.model_validate(body).to_submission("tiny", {}).request == body


def check_settings(recipe: Recipe, settings: str) -> None:
    """Check that a recipe has these settings, in TOML."""
    tables = recipe.model_dump(mode="json")
    assert merge_tables(tables, tomllib.loads(settings)) == tables


def test_a_plain_body_is_a_whole_recipe() -> None:
    recipe = the_recipe()
    check_settings(
        recipe,
        """
        name = "fine-tune"
        algorithm.advantage = "grpo"
        model.max_context = 4096
        rollout.sampling.max_tokens = 2048
        """,
    )
    assert recipe.model.prompt_template is None
    assert recipe.evaluation is None
    assert the_recipe(body={"suffix": "mine"}).name == "mine"
    reward = the_recipe({"reward": {"process": "equation_steps"}}).reward
    verifiers = [check.verifier for check in (*reward.outcome, *reward.process)]
    assert verifiers == ["string_check", "equation_steps"]


def test_fields_take_the_places_of_the_recipes_paths() -> None:
    tables = {"model": {"path": "tiny"}, "tasks": {"train": "train.jsonl"}}
    recipe = the_recipe(tables, body={"validation_file": "file-2"})
    check_settings(
        recipe,
        """
        model.path = "/models/tiny"
        tasks = { train = "file-1", held_out = "file-2" }
        """,
    )


@table("""
    num_tasks | batch | steps
    8         | 8     | 10
    100       | 16    | 63
    250       | 8     | 125
""")
def test_auto_sees_all_tasks_and_makes_a_hundred_steps_if_ten_epochs_suffice(
    num_tasks: int, batch: int, steps: int
) -> None:
    recipe = the_recipe(num_tasks=num_tasks, batch_size=batch, n_epochs="auto")
    assert recipe.training.steps == steps
    recipe = the_recipe({"training": {"steps": 9}}, batch_size="auto", n_epochs="auto")
    check_settings(recipe, "training = { steps = 9, groups_per_step = 16 }")


@pytest.mark.parametrize(("has_one", "template"), [(False, "{prompt}"), (True, None)])
def test_a_model_without_a_chat_template_reads_the_prompt_as_it_is(
    has_one: bool, template: str | None
) -> None:
    recipe = the_recipe(facts=ModelFacts(has_chat_template=has_one))
    assert recipe.model.prompt_template == template


def test_the_request_wins_over_the_deployment_and_that_over_defaults() -> None:
    text = """
        model = { max_context = 1000, dtype = "float32" }
        rollout = { group_size = 32, sampling.max_tokens = 100 }
        training = { steps = 7, groups_per_step = 3 }
    """
    defaults = tomllib.loads(text)
    sent = {"rollout": {"sampling": {"max_tokens": 200}}, "training": {"steps": 9}}
    recipe = the_recipe(sent, defaults=defaults)
    check_settings(recipe, text.replace("100 }", "200 }").replace("7", "9"))
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 7),
        ({"n_epochs": 1}, 34),  # of 3 tasks each
        ({"n_epochs": 1, "batch_size": 50}, 2),
    ]
    for hyperparameters, steps in cases:
        assert the_recipe(defaults=defaults, **hyperparameters).training.steps == steps
    assert defaults == tomllib.loads(text)


def test_an_algorithm_that_is_sent_takes_nothing_from_that_of_the_deployment() -> None:
    defaults = {"algorithm": {"advantage": "gae", "lambda_actor": 0.9}, "critic": {}}
    assert the_recipe(defaults=defaults).critic is not None
    recipe = the_recipe({"algorithm": {"advantage": "rloo"}}, defaults=defaults)
    assert recipe.algorithm.advantage == "rloo"
    assert recipe.critic is None


def test_held_out_tasks_are_evaluated_every_tenth_of_the_steps_unless_the_body_says_how() -> None:
    held_out = {"validation_file": "file-2"}
    check_settings(the_recipe(body=held_out), "training.steps = 63\nevaluation.every = 7")
    recipe = the_recipe(body=held_out, eval_interval=3, eval_samples=2)
    check_settings(recipe, "evaluation = { every = 3, samples = 2 }")
    assert the_recipe(defaults={"evaluation": {"samples": 9}}).evaluation is None


@pytest.mark.parametrize(
    ("tables", "of_rate", "of_compute", "rate", "group_size"),
    [
        ({}, 2, 1.5, 2e-6, 12),
        (
            {"optimizer": {"learning_rate": 1e-4}, "rollout": {"group_size": 4}},
            *(0.5, 0.01, 5e-5, 2),  # a group of one teaches nothing
        ),
    ],
)
def test_multipliers_multiply_what_the_recipe_says(
    tables: dict[str, Any], of_rate: float, of_compute: float, rate: float, group_size: int
) -> None:
    recipe = the_recipe(tables, learning_rate_multiplier=of_rate, compute_multiplier=of_compute)
    assert recipe.optimizer.learning_rate == pytest.approx(rate)
    assert recipe.rollout.group_size == group_size


MULTI = {"type": "multi", "graders": {"a": {"type": "math_answer"}}, "calculate_output": "a % 2"}


MULTI = {"type": "multi", "graders": {"a": {"type": "math_answer"}}, "calculate_output": "a % 2"}


@table(
    """
    settings                       | changes                              | fields
    training = { steps = -1, seed = 'x' } | {} | recipe.training.steps recipe.training.seed
    trainning = {}                 | {}                                   | recipe.trainning
    extends = '/a.toml'            | {}                                   | recipe.extends
    tasks.tran = 'x'               | {}                                   | recipe.tasks.tran
    model = 3                      | {}                                   | recipe.model
    model.path = 'other'           | {}                                   | recipe.model.path
    tasks.held_out = 'x'           | {}                                   | validation_file
                                   | {"eval_interval": 3}                 | HYPER.eval_interval
    training.seed = 6              | {"body": {"seed": 5}}                | seed
                                   | {"n_epochs": 0}                      | HYPER.n_epochs
     | {"learning_rate_multiplier": 5e-324} | recipe.optimizer.learning_rate
                                   | {"reasoning_effort": "high"}         | HYPER.reasoning_effort
    training.groups_per_step = 4   | {"batch_size": 5}                    | HYPER.batch_size
    reward.outcome = 'math_answer' | {} | method.reinforcement.grader
    """,
    ("", {"body": {"metadata": {str(n): "x" for n in range(17)}}}, "metadata"),
    (
        "",
        {"grader": None, "n_epochs": 1, "body": {"hyperparameters": {"batch_size": 1}}},
        "hyperparameters",
    ),
    ("", {"grader": MULTI}, "method.reinforcement.grader.calculate_output"),
)
def test_an_invalid_recipe_is_refused_by_its_fields(
    settings: str, changes: dict[str, Any], fields: str
) -> None:
    with pytest.raises((Problem, ValidationError)) as caught:
        the_recipe(tomllib.loads(settings), **changes)
    error = caught.value
    lines = error.detail.splitlines() if isinstance(error, Problem) else explain_body(error)
    names = fields.replace("HYPER", "method.reinforcement.hyperparameters").split()
    assert [line.partition(": ")[0] for line in lines] == names
    assert not isinstance(error, Problem) or error.param == names[0]


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        (json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH), True),
        (json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)), False),
        ({"a": [1] * (MAX_VALUES - 1)}, True),
        ({"a": [1] * MAX_VALUES}, False),
        ([{"a": "[," * MAX_VALUES}], True),
    ],
)
def test_a_body_nests_no_deeper_and_holds_no_more_values_than_its_readers_take(
    body: Any, fits: bool
) -> None:
    assert (find_problems(body) == []) is fits


@table("""
    text                         | words
    training.stepz = 3           | training.stepz
    model.path = 'a'             | every job has its own
    model = 3                    | model: must be a table
    algorithm.advantage = 'papo' | reward.process
""")
def test_a_wrong_file_is_named_with_its_field_when_the_gateway_starts(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "defaults.toml"
    path.write_text(text)
    with pytest.raises(DeploymentError, match=r"WEIR_RECIPE_DEFAULTS=.*defaults\.toml") as caught:
        load_defaults({"WEIR_RECIPE_DEFAULTS": str(path)})
    assert words in str(caught.value)


# ---------------------------------------------------------------------- pasted recipes

DEMO = Path(__file__).parents[3] / "recipes/demo.toml"


def test_toml_and_json_of_one_recipe_are_the_same_recipe() -> None:
    text = DEMO.read_text()
    assert read_recipe(text) == read_recipe(json.dumps(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "text: not valid TOML"),
        ('{"name": ', "text: not valid JSON: it ends too early, at line 1, column 10"),
        ('{\n"name": "a",\n}', "text: not valid JSON at line 3, column 1, '}': remove the comma"),
        ('{"name": "a\nb"}', "text: not valid JSON at line 1, column 12, '\\n': write \\n"),
        ('{"a":' * 100_000, "text: "),
        ("a." * 30_000 + "a = 1", "text: "),
        ("[training]\nstep = 1", "training.step: "),
        (f'extends = "{DEMO}"\nname = "mine"', "extends: works only in a file"),
        (json.dumps({"extends": str(DEMO)}), "extends: works only in a file"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(RecipeTextError) as refused:
        read_recipe(text)
    assert any(line.startswith(problem) for line in str(refused.value).splitlines())


def test_an_example_that_extends_others_comes_with_all_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "demo.toml").write_text(DEMO.read_text())
    (folder / "faster.toml").write_text('extends = "demo.toml"\ntraining.steps = 1\n')
    (folder / "part.toml").write_text("[training]\nsteps = 1\n")
    monkeypatch.chdir(tmp_path)
    demo, faster = example_recipes()["data"]
    assert demo == {"name": "demo.toml", "text": DEMO.read_text(), "files": {}}
    recipe = read_recipe(json.dumps(faster["recipe"]))
    assert recipe == load_recipe(folder / "faster.toml")
    assert recipe.training.steps == 1


# ---------------------------------------------------------------------- recipes that cannot work

WITH = ModelFacts(has_chat_template=True)
WITHOUT = ModelFacts(has_chat_template=False)
PLAIN = {"model": {"prompt_template": "{prompt}"}}


def check(
    tables: dict[str, Any],
    facts: ModelFacts = UNKNOWN_FACTS,
    messages: bool = False,
    has_formulas: bool = False,
) -> None:
    with_messages = ["training_file"] * messages
    check_recipe(
        a_recipe(**tables), facts, has_extensions=has_formulas, message_fields=with_messages
    )


PLAIN_CRITIC = "algorithm.advantage = 'gae'\ncritic."


@table(
    """
    settings                                                 | field
    name = 'train:3'                                         | name
    name = 'ftjob-mine'                                      | name
    name = 'mine@3'                                          | name
    name = '-mine'                                           | name
    name = 'mine.toml'                                       | name
    training.steps = 4611686018427387904                     | training.steps
    rollout.sampling = { max_tokens = 8, temperature = 2.1 } | rollout.sampling.temperature
    algorithm.advantage = 'my_lab.squared'                   | algorithm.advantage
""",
    (f"{PLAIN_CRITIC}pretrain_steps = 4611686018427387904", "critic.pretrain_steps"),
    (
        f"{PLAIN_CRITIC}optimizer.learning_rate = 1e-306",
        "critic.optimizer.learning_rate",
    ),
)
def test_a_recipe_that_cannot_work_is_refused_by_its_field(settings: str, field: str) -> None:
    with refused(400, param=f"recipe.{field}"):
        check(tomllib.loads(settings))


def test_a_recipe_that_fits_no_model_is_refused_by_its_field() -> None:
    with refused(400, param="recipe.model.max_context"):
        check({}, ModelFacts(context=32))
    for tables, facts, messages in (({}, WITHOUT, False), (PLAIN, WITH, True)):
        with refused(400, param="recipe.model.prompt_template"):
            check(tables, facts, messages)


def test_a_recipe_at_the_limit_is_accepted() -> None:
    check({"name": "training: 3 @ night, 2024.toml-like"})
    check({"training": {"steps": 2**45}})  # times 2, 2 and 64
    for temperature in (0.01, 2.0):
        check({"rollout": {"sampling": {"max_tokens": 8, "temperature": temperature}}})
    check({"algorithm": {"advantage": "my_lab.squared"}}, has_formulas=True)
    check({}, ModelFacts(context=64))
    for with_messages in (False, True):
        check(PLAIN, WITHOUT, with_messages)
    check({}, WITH, True)


def test_half_of_the_memory_limit_or_all_of_the_machine_is_allowed_and_not_a_byte_more() -> None:
    needed = worst_case_bytes(a_recipe(), {})
    for enough in (Memory(0, None), Memory(0, 2 * needed), Memory(0, None, needed)):
        check_memory_need(a_recipe(), {}, enough)
    for too_little in (Memory(0, 2 * needed - 1), Memory(0, None, needed - 1)):
        with refused(400, param="recipe.rollout", match="8,192 bytes"):
            check_memory_need(a_recipe(), {}, too_little)
    sampled_anew = a_recipe(training={"dynamic_sampling": True, "max_oversampling": 3.0})
    with pytest.raises(Problem, match=r"24,576 bytes .* x 3"):
        check_memory_need(sampled_anew, {}, Memory(0, 2 * needed))


def test_a_job_is_refused_while_memory_is_nearly_full() -> None:
    for room in (Memory(10**9, None), Memory(75, 100)):
        check_free_memory(room)
    with refused(507, "no_room") as caught:
        check_free_memory(Memory(76, 100))
    assert caught.value.headers == {"x-should-retry": "false"}
