"""Recipes: a typo stops where it enters, and the message names the key."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from protocol.capacity import worst_case_bytes, worst_case_in_words
from protocol.recipe import load_recipe, parse_recipe
from protocol.recipe_files import RecipeError, load_tables

from tests.architecture.project import ROOT
from tests.builders import a_recipe
from tests.tables import table

SMALL = """
name = "small"

[model]
path = "models/tiny"

[tasks]
train = "train.jsonl"

[rollout.sampling]
max_tokens = 8

[reward]
process = "equation_steps"

[training]
steps = 2
"""


def refusal(settings: str) -> str:
    """Return the refusal of a recipe with these settings, in TOML."""
    recipe = a_recipe().model_dump(mode="json")
    for name, values in tomllib.loads(settings).items():
        recipe[name] = (recipe.get(name) or {}) | values if isinstance(values, dict) else values
    with pytest.raises(RecipeError) as caught:
        parse_recipe(recipe)
    return str(caught.value)


def test_a_short_recipe_is_filled_with_defaults(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    recipe = load_recipe(path)
    assert (recipe.algorithm.advantage, recipe.rollout.group_size) == ("papo", 8)
    assert recipe.groups_in_flight == 32
    assert recipe.evaluations == {}
    learning = {"objective": "my_lab.squared", "advantage": "gae"}  # a name for the learner alone
    critic = a_recipe(algorithm=learning, critic={"optimizer": {"zero_stage": 3}}).critic
    assert critic is not None
    assert critic.optimizer.learning_rate == 2e-6  # its own default


def test_the_longest_response_is_all_turns_of_an_episode_as_far_as_they_fit() -> None:
    def longest(max_turns: int) -> int:
        return a_recipe(
            environment={"url": "http://games", "max_turns": max_turns}
        ).longest_response

    assert a_recipe().longest_response == 8
    assert [longest(turns) for turns in (1, 3, 8)] == [8, 24, 63]  # a prompt has a token


@table(r"""
    settings                                                    | problem
    training.step = 3                                           | training.step: unknown key
    training.steps = -1                                         | training.steps:
    algorithm.advantage = 'magic'          | algorithm.advantage: 'magic' is none of grpo
    algorithm.advantage = 'papa'                                | did you mean 'papo'?
    algorithm.correction = 'token_tis'                          | set old_logprobs = 'recompute'
    algorithm = { correction_cap = 0.5, correction_floor = 0.5 } | must be below correction_cap
    algorithm = { advantage = 'grpo', lambda_process = 0.5 }    | lambda_process does noth
    critic = { pretrain_until = 0.5, pretrain_steps = 3 }       | pretrain_until does nothing
    optimizer = { zero_stage = 0, offload = 'optimizer' }       | needs zero_stage >= 1
    model.dtype = 'bfloat16' ; optimizer.zero_stage = 0         | sums gradients in bfloat16
    rollout.sampling = { max_tokens = 8, top_p = 0.9 }          | sampling.top_p must be 1
    reward.outcome = 'my-lab.oracle'    | reward.outcome.0.verifier: 'my-lab.oracle'
    reward.values = [1, 1]                                      | values must be [wrong, right]
    model.prompt_template = 'Solve it'                          | must contain {prompt}
    model = { prompt_template = '{prompt}', chat_template_options = { a = 1 } } | options do nothing
    reward.process = { verifier = 'model_judge', chat_template_options = { - = 1 } } | options
    training.compile_layers = true ; optimizer.zero_stage = 3   | compile_layers needs whole layers
    reward = { process = [], process_for = 'correct' }          | 'papo' needs reward.process
    algorithm.advantage = 'process_only'                        | needs process_for = 'all'
    algorithm.advantage = 'max_rl' ; reward.values = [-1, 1]    | needs a wrong answer to pay 0
    algorithm.advantage = 'reinforce' ; training.dynamic_sampling = true | drops groups
    rollout.group_size = 1 | 'papo' needs rollout.group_size >= 2
    algorithm.advantage = 'gae'                                 | needs the table [critic]
    critic = {}                                                 | uses no [critic]
    tasks.held_out = 'h.jsonl' ; evaluation.sampling.max_tokens = 64 | recipe: evaluation.sampling
    evaluation.samples = 1                                      | evaluation needs tasks.held_out
    tasks.train = ''                                            | tasks: give exactly one of train
    tasks.sources = [{ name = 'a', train = 'a' }]               | tasks: give exactly one of train
    tasks = { train = '', sources = [AAA, AAA] }                | sources must have different names
    tasks = { train = '', sources = [STOP] }                    | sources: one must have when_exh
    tasks.curriculum = { return_after = 3 }                     | tasks.curriculum: give at least
    tasks.curriculum = { hard = 0.1, return_after = 3 }         | return_after does nothing without
    tasks.curriculum = { easy = 0.5, hard = 0.5 }               | easy + hard must be below 1
    tasks.curriculum = { easy = 0.1, retire_above = 0.9 }       | easy does nothing if retired tasks
    rollout.sampling.max_tokens = 64 | rollout.sampling.max_tokens must be below
    training.updates_per_batch = 3           | updates_per_batch must be at most groups_per_s
    model.path = "\u0000"                                       | model.path: no path
    extends = 'recipes/demo.toml'                               | extends: works only in a file
    without = 'reward'                                          | without: works only in a file
""")
def test_a_wrong_setting_is_named(settings: str, problem: str) -> None:
    sources = {
        "AAA": "{ name = 'a', train = 'a' }",
        "STOP": "{ name = 'a', train = 'a', when_exhausted = 'stop' }",
    }
    for word, source in {" ; ": "\n", **sources}.items():
        settings = settings.replace(word, source)
    assert problem in refusal(settings).splitlines()[0]


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe({"name": "", "model": {}, "rollout": {"sampling": {}}, "training": []})
    named = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert named == ["name", "model.path", "tasks", "rollout.sampling.max_tokens", "training"]


# ---------------------------------------------------------------------- files that extend others

CRITIC = """
[critic]
pretrain_steps = 5
path = "models/critic"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parents").mkdir()
    (tmp_path / "parents/whole.toml").write_text(SMALL)
    return tmp_path


def write(folder: Path, text: str, name: str = "child.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_child_changes_settings_and_keeps_the_others(folder: Path) -> None:
    text = """
    extends = "parents/whole.toml"
    model.dtype = "float32"
    rollout.sampling = { stop = ["a", "b"] }
    """
    child = load_tables(write(folder, text))
    parent = tomllib.loads(SMALL)
    assert child["name"] == "small"
    assert child["model"] == {"path": "models/tiny", "dtype": "float32"}  # as in the parent's file
    assert child["rollout"]["sampling"] == {"max_tokens": 8, "stop": ["a", "b"]}
    assert child | parent == child | {table: parent[table] for table in parent}
    grandchild = 'extends = "child.toml"\nname = "third"\nrollout.sampling.stop = ["c"]\n'
    recipe = load_recipe(write(folder, grandchild, "grandchild.toml"))
    assert (recipe.name, recipe.model.dtype) == ("third", "float32")
    assert recipe.rollout.sampling.stop == ("c",)  # a list is replaced


def test_a_value_and_a_table_replace_each_other(folder: Path) -> None:
    judge = '{ verifier = "model_judge", rubric = "holistic" }'
    text = f'extends = "parents/whole.toml"\nreward.process = {judge}\n'
    assert load_recipe(write(folder, text)).reward.process[0].verifier == "model_judge"
    back = write(folder, 'extends = "child.toml"\nreward.process = "equation_steps"\n', "b.toml")
    assert load_recipe(back).reward == load_recipe(folder / "parents/whole.toml").reward


def test_a_child_leaves_settings_of_its_parent_out(folder: Path) -> None:
    write(folder, SMALL + CRITIC, "parents/critic.toml")
    text = """
    extends = "parents/critic.toml"
    without = ["critic.pretrain_steps", "reward"]
    [critic]
    path = "models/other"
    """
    tables = load_tables(write(folder, text))
    assert tables["critic"] == {"path": "models/other"}
    assert "reward" not in tables
    text = 'extends = "parents/critic.toml"\nwithout = "critic"\ncritic.value_clip = 1.0\n'
    assert load_tables(write(folder, text))["critic"] == {"value_clip": 1.0}


def test_parents_apply_one_after_the_other_and_then_the_child(folder: Path) -> None:
    overlay = 'without = ["reward"]\n[training]\nsteps = 3\nseed = 3\ngroups_per_step = 3\n'
    write(folder, overlay, "overlay.toml")
    text = 'extends = ["parents/whole.toml", "overlay.toml"]\ntraining.seed = 4\n'
    tables = load_tables(write(folder, text))
    assert tables["training"] == {"steps": 3, "seed": 4, "groups_per_step": 3}
    assert "reward" not in tables


@table(
    """
    text                    | problem
    extends = "child.toml"  | child.toml: extends: child.toml is this file or extends it
    extends = "ring.toml"   | ring.toml: extends: child.toml is this file or extends it
    extends = "none.toml"   | child.toml: extends: .*none.toml: no such file; give a path
    extends = "parents"     | child.toml: extends: .*parents: no such file; give a path
    extends = 3             | child.toml: extends: must be a text or a list of texts
    extends = "broken.toml" | broken.toml: not valid TOML
    without = { name = 1 }  | child.toml: without: must be a text or a list of texts
""",
    ("name = ", "child.toml: not valid TOML"),
    (
        'extends = "parents/whole.toml"\nwithout = ["training.stepz"]',
        "child.toml: without: no parent sets training.stepz; remove it or check its spelling",
    ),
    (
        'extends = "parents/whole.toml"\nwithout = ["name.first"]',
        "child.toml: without: no parent sets name.first",
    ),
    ('without = ["name"]\nname = "a"', "child.toml: without: no parent sets name"),
    ('extends = "parents/whole.toml"\ntraining.stepz = 3', "child.toml:\ntraining.stepz: unk"),
)
def test_a_file_that_cannot_be_used_is_named(folder: Path, text: str, problem: str) -> None:
    write(folder, 'extends = "child.toml"', "ring.toml")
    write(folder, "name = ", "broken.toml")
    with pytest.raises(RecipeError, match=problem):
        load_recipe(write(folder, text))
    with pytest.raises(RecipeError, match=r"missing\.toml"):
        load_recipe(folder / "missing.toml")


# ---------------------------------------------------------------------- capacity

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


def test_the_recipe_of_the_readme_is_one(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    path = tmp_path / "my.toml"
    path.write_text(text)
    recipe = load_recipe(path)
    assert recipe.algorithm.advantage == "papo"
    (outcome,) = recipe.reward.outcome
    source = outcome.model_dump()["source"]
    scope: dict[str, Any] = {}
    exec(source, scope)
    assert scope["grade"]({"output_text": "It is 42.\n42\n"}, {"answer": "42"}) == 1
