"""Every shipped recipe is valid; the small ones run as they are, and are what they claim to be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Recipe, load_recipe
from protocol.tasks import read_tasks

from tests.architecture.project import ROOT, name_of
from benchmarks.methods import table

RECIPES = ROOT / "recipes"
TINY = RECIPES / "tiny"
ALL = sorted(RECIPES.rglob("*.toml"))
TWINS = [path for path in ALL if path.is_relative_to(TINY)]
DEMOS = [path for path in ALL if path.parent == RECIPES]
PUBLISHED = [path for path in ALL if path not in TWINS and path not in DEMOS]

SIZES = {
    "name",
    "rollout.group_size",
    "rollout.sampling.max_tokens",
    "reward.overlong_buffer",
    "training.steps",
    "training.groups_per_step",
    "training.micro_batch_tokens",
    "training.recompute_activations",
    "training.checkpoint_every",
    "optimizer.learning_rate",
    "optimizer.warmup_steps",
    "optimizer.zero_stage",
    "optimizer.offload",
    "critic.pretrain_steps",
    "critic.optimizer.learning_rate",
    "critic.optimizer.warmup_steps",
    "critic.optimizer.zero_stage",
    "critic.optimizer.offload",
    "evaluation.samples",
    "evaluation.tasks",
    "evaluation.every",
    "evaluation.sampling.max_tokens",
}
OVERLAP = {"training.max_staleness", "algorithm.correction"}
TABLES_OF_ITS_OWN = ("model.", "tasks.", "machine")
JUDGE = "reward.process"  # a model in a published run, a program in its twin
SWITCHED = ("reward.overlong_buffer", "critic.pretrain_steps", JUDGE)

PAPO, VAPO = "papo/qwen2.5-7b", "vapo/qwen2.5-32b"
CLIP = {"algorithm.objective", "algorithm.clip_high"}
BATCH = {"rollout.group_size", "training.groups_per_step"}
REMOVED = {  # what an ablation changes in its parent
    "papo/qwen2.5-7b-lambda-0.6": (PAPO, {"algorithm.lambda_process"}),
    "papo/qwen2.5-7b-as-printed": (
        PAPO,
        CLIP
        | OVERLAP
        | {"algorithm.denominator", "algorithm.aggregation", "evaluation.samples", JUDGE},
    ),
    "papo/qwen2.5-7b-orm": (PAPO, {"algorithm.advantage", JUDGE}),
    "papo/qwen2.5-7b-process-only": (PAPO, {"algorithm.advantage", "reward.process_for"}),
    "papo/qwen2.5-7b-multiplicative": (PAPO, {"algorithm.advantage"}),
    "papo/qwen2.5-7b-full-norm": (PAPO, {"algorithm.advantage", "algorithm.lambda_process"}),
    "vapo/without-value-pretraining": (VAPO, {"critic.pretrain_steps"}),
    "vapo/without-decoupled-gae": (VAPO, {"algorithm.advantage"}),
    "vapo/without-length-adaptive-gae": (VAPO, {"algorithm.advantage"}),
    "vapo/without-clip-higher": (VAPO, {"algorithm.clip_high"}),
    "vapo/without-token-level-loss": (VAPO, {"algorithm.aggregation"}),
    "vapo/without-positive-lm-loss": (VAPO, {"algorithm.positive_lm_weight"}),
    "vapo/without-group-sampling": (VAPO, BATCH),
}

every_recipe = pytest.mark.parametrize("path", ALL, ids=name_of)
every_runnable = pytest.mark.parametrize("path", [*DEMOS, *TWINS], ids=name_of)
every_published = pytest.mark.parametrize("path", PUBLISHED, ids=name_of)


def fields(recipe: Recipe) -> dict[str, Any]:
    """The value of every setting, by its dotted name."""

    def walk(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in table.items():
            if isinstance(value, dict):
                yield from walk(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    return dict(walk("", recipe.model_dump()))


def differences(one: Path, other: Path) -> set[str]:
    """The settings that two recipes do not share."""
    left, right = fields(load_recipe(one)), fields(load_recipe(other))
    return {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}


def twin_of(path: Path) -> Path:
    return TINY / path.relative_to(RECIPES)


@every_recipe
def test_a_recipe_is_valid(path: Path) -> None:
    load_recipe(path)


def test_no_two_recipes_have_the_same_name() -> None:
    assert len({load_recipe(path).name for path in ALL}) == len(ALL)


@every_runnable
def test_the_model_and_the_tasks_of_a_small_recipe_are_there(path: Path) -> None:
    recipe = load_recipe(path)
    assert (ROOT / recipe.model.path / "config.json").is_file()
    for tasks in filter(None, (recipe.tasks.train, recipe.tasks.held_out)):
        assert read_tasks(ROOT / tasks)


def test_every_published_run_has_a_twin_and_every_twin_a_published_run() -> None:
    assert [twin_of(path) for path in PUBLISHED] == TWINS


@every_published
def test_a_twin_differs_only_in_size_model_data_learning_rate_and_judge(path: Path) -> None:
    differing = differences(path, twin_of(path)) - SIZES - OVERLAP - {JUDGE}
    assert {name for name in differing if not name.startswith(TABLES_OF_ITS_OWN)} == set()


@every_published
def test_what_is_off_in_a_published_run_is_off_in_its_twin_too(path: Path) -> None:
    published, twin = fields(load_recipe(path)), fields(load_recipe(twin_of(path)))
    for name in SWITCHED:
        assert bool(published.get(name)) == bool(twin.get(name)), name
    assert (published["rollout.group_size"] == 1) == (twin["rollout.group_size"] == 1)


@every_published
def test_a_model_judges_a_published_run_and_a_program_its_twin(path: Path) -> None:
    published, twin = (load_recipe(each).reward for each in (path, twin_of(path)))
    assert {check.verifier for check in published.process} <= {"model_judge"}
    assert {check.verifier for check in twin.process} <= {"equation_steps"}


@every_published
def test_a_twin_needs_no_more_than_128_responses_of_48_tokens_a_step(path: Path) -> None:
    twin = load_recipe(twin_of(path))
    assert twin.training.groups_per_step * twin.rollout.group_size == 128
    assert twin.rollout.sampling.max_tokens == 48
    assert twin.training.steps + twin.num_pretrain_steps <= 30


@every_published
def test_samples_that_are_older_than_the_policy_are_corrected_for(path: Path) -> None:
    recipe = load_recipe(path)
    overlaps = recipe.training.max_staleness > 0
    assert overlaps == (recipe.algorithm.correction != "none")
    alternating = {"deepseekmath-7b", "qwen2.5-7b-as-printed"}
    assert overlaps == (path.stem not in alternating)


@pytest.mark.parametrize("name", REMOVED)
def test_an_ablation_differs_from_its_parent_in_what_it_removes(name: str) -> None:
    parent, expected = REMOVED[name]
    differing = differences(RECIPES / f"{name}.toml", RECIPES / f"{parent}.toml")
    steps_of_the_script = {"training.steps"} if parent == PAPO else set()
    assert differing - steps_of_the_script == expected | {"name"}


def test_a_clip_that_is_said_never_to_bind_is_around_a_ratio_of_one() -> None:
    said = [path for path in ALL if "never binds" in path.read_text()]
    assert [path.stem for path in said] == ["deepseekmath-7b"]
    for recipe in map(load_recipe, said):
        assert (recipe.training.updates_per_batch, recipe.algorithm.old_logprobs) == (
            1,
            "recompute",
        )


def test_all_seven_removals_of_vapo_are_there() -> None:
    removals = {path.stem for path in (RECIPES / "vapo").glob("without-*.toml")}
    assert removals == {Path(name).name for name in REMOVED if name.startswith("vapo/")}
    assert len(removals) == 7


def test_vanilla_ppo_is_vapo_with_everything_removed() -> None:
    differing = differences(RECIPES / "ppo/qwen2.5-32b.toml", RECIPES / f"{VAPO}.toml")
    removed = [changed for parent, changed in REMOVED.values() if parent == VAPO]
    assert differing == {"name"}.union(*removed)


def test_the_two_demos_differ_only_in_name_and_advantage() -> None:
    papo, grpo = RECIPES / "demo.toml", RECIPES / "demo-grpo.toml"
    assert differences(papo, grpo) == {"name", "algorithm.advantage"}
    advantages = [load_recipe(path).algorithm.advantage for path in (papo, grpo)]
    assert advantages == ["papo", "grpo"]


def test_the_lora_demo_is_the_demo_with_an_adapter_and_a_learning_rate_for_it() -> None:
    differing = differences(RECIPES / "demo.toml", RECIPES / "demo-lora.toml")
    adapter = {name for name in differing if name.startswith("model.lora")}
    assert differing - adapter == {"name", "optimizer.learning_rate"}
    assert adapter


def test_the_index_of_recipes_is_complete() -> None:
    index = (RECIPES / "README.md").read_text()
    names = [str(path.relative_to(RECIPES)) for path in ALL]
    assert [name for name in names if f"`{name}`" not in index] == []


def test_the_table_of_what_the_twins_do_is_the_one_that_was_measured() -> None:
    runs = json.loads((ROOT / "benchmarks/methods.json").read_text())
    readme = (RECIPES / "README.md").read_text()
    shown = readme.partition("<!-- methods table -->\n")[2].partition("\n<!-- /methods table -->")[
        0
    ]
    assert shown == table(runs)
    assert all((ROOT / run["recipe"]).is_file() for run in runs)
