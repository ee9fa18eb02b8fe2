"""Recipes that are told to be alike differ in what they are told to differ in, and in no more."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from protocol.recipe import Recipe, load_recipe
from protocol.recipe_files import RecipeError

from tests.architecture.project import ROOT

FOLDER = ROOT / "recipes"
TWIN = FOLDER / "tiny/twin.toml"  # what all twins change, and no recipe by itself
RECIPES = {
    str(path.relative_to(FOLDER).with_suffix("")): load_recipe(path)
    for path in sorted(FOLDER.rglob("*.toml"))
    if path != TWIN
}
UNPUBLISHED = ("tiny/", "one-gpu/", "environments/")
PUBLISHED = [n for n in RECIPES if "/" in n and not n.startswith(UNPUBLISHED)]

JUDGE = "reward.process"  # a model in a published run, a program in its twin
OVERLAP = {"rollout.kv_after_sync", "training.max_staleness", "algorithm.correction"}
OF_A_TWIN = re.compile(  # sizes, lengths, model, data, learning rates; where it runs
    r"name|model\..*|tasks\..*|machine.*|rollout\.group_size|reward\.overlong_buffer"
    r"|training\.(steps|groups_per_step|micro_batch_tokens|recompute_activations|checkpoint_every)"
    r"|(critic\.)?optimizer\.(learning_rate|warmup_steps|zero_stage|offload)"
    r"|critic\.pretrain_steps|evaluation\.(samples|tasks|every)|.*\.max_tokens"
)
PAPO, VAPO = "papo/qwen2.5-7b", "vapo/qwen2.5-32b"
# By ablation: its parent and the fields that it changes there.
ABLATIONS = """
papo/qwen2.5-7b-lambda-0.6       papo/qwen2.5-7b algorithm.lambda_process
papo/qwen2.5-7b-as-printed       papo/qwen2.5-7b algorithm.objective algorithm.clip_high \
    training.max_staleness algorithm.correction algorithm.denominator algorithm.aggregation \
    evaluation.samples reward.process
papo/qwen2.5-7b-orm              papo/qwen2.5-7b algorithm.advantage reward.process machine.gpus
papo/qwen2.5-7b-process-only     papo/qwen2.5-7b algorithm.advantage reward.process_for
papo/qwen2.5-7b-multiplicative   papo/qwen2.5-7b algorithm.advantage
papo/qwen2.5-7b-full-norm        papo/qwen2.5-7b-lambda-0.6 algorithm.advantage
papo/qwen3-4b-base-orm           papo/qwen3-4b-base algorithm.advantage reward.process \
    machine.gpus training.micro_batch_tokens
dapo/ladder-2-overlong-filter    dapo/ladder-1-grpo reward.overlong_filter
dapo/ladder-3-clip-higher        dapo/ladder-2-overlong-filter algorithm.clip_high
dapo/ladder-4-soft-overlong      dapo/ladder-3-clip-higher reward.overlong_filter \
    reward.overlong_buffer
dapo/ladder-5-token-mean         dapo/ladder-4-soft-overlong algorithm.aggregation
dapo/qwen2.5-32b                 dapo/ladder-5-token-mean training.dynamic_sampling \
    training.max_oversampling
vapo/without-value-pretraining   vapo/qwen2.5-32b critic.pretrain_steps
vapo/without-decoupled-gae       vapo/qwen2.5-32b algorithm.advantage
vapo/without-length-adaptive-gae vapo/qwen2.5-32b algorithm.advantage
vapo/without-clip-higher         vapo/qwen2.5-32b algorithm.clip_high
vapo/without-token-level-loss    vapo/qwen2.5-32b algorithm.aggregation
vapo/without-positive-lm-loss    vapo/qwen2.5-32b algorithm.positive_lm_weight
vapo/without-group-sampling      vapo/qwen2.5-32b rollout.group_size training.groups_per_step
demo-grpo                        demo algorithm.advantage
demo-lora                        demo model.lora optimizer.learning_rate
"""
REMOVED = {
    name: (parent, names) for name, parent, *names in map(str.split, ABLATIONS.split("\n")[1:-1])
}
# Vanilla PPO is VAPO with everything removed.
REMOVED["ppo/qwen2.5-32b"] = (
    VAPO,
    [n for p, names in REMOVED.values() if p == VAPO for n in names],
)


def fields(recipe: Recipe) -> dict[str, Any]:
    def walk(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in table.items():
            if isinstance(value, dict) and name != "lora":
                yield from walk(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    return dict(walk("", recipe.model_dump()))


def differences(one: str, other: str) -> set[str]:
    left, right = fields(RECIPES[one]), fields(RECIPES[other])
    return {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}


def test_no_two_recipes_have_the_same_name() -> None:
    assert len({recipe.name for recipe in RECIPES.values()}) == len(RECIPES)


@pytest.mark.parametrize("name", REMOVED)
def test_an_ablation_differs_from_its_parent_in_what_it_removes(name: str) -> None:
    parent, removed = REMOVED[name]
    steps_of_the_script = {"training.steps"} if parent == PAPO else set()
    assert differences(name, parent) - steps_of_the_script == {"name", *removed}


def test_a_published_run_has_a_twin_that_differs_in_size_data_and_judge() -> None:
    assert [name for name in RECIPES if name.startswith("tiny/")] == [
        f"tiny/{n}" for n in PUBLISHED
    ]
    for name in PUBLISHED:
        differing = differences(name, f"tiny/{name}") - OVERLAP - {JUDGE}
        assert {field for field in differing if not OF_A_TWIN.fullmatch(field)} == set(), name
        published, twin = RECIPES[name], RECIPES[f"tiny/{name}"]
        for switched in ("reward.overlong_buffer", "critic.pretrain_steps", JUDGE):
            assert bool(fields(published).get(switched)) == bool(fields(twin).get(switched)), name
        assert (published.rollout.group_size == 1) == (twin.rollout.group_size == 1), name
        assert {check.verifier for check in published.reward.process} <= {"model_judge"}, name
        assert {check.verifier for check in twin.reward.process} <= {"equation_steps"}, name
        assert twin.training.groups_per_step * twin.rollout.group_size == 128, name
        assert twin.training.steps + twin.num_pretrain_steps <= 30, name


def test_a_twin_is_its_run_and_what_all_twins_change() -> None:
    for name in PUBLISHED:
        path = FOLDER / f"tiny/{name}.toml"
        parents = tomllib.loads(path.read_text())["extends"]
        files = [(path.parent / parent).resolve() for parent in parents]
        assert files == [FOLDER / f"{name}.toml", TWIN], name
    with pytest.raises(RecipeError, match="without: no parent sets machine"):
        load_recipe(TWIN)


def test_samples_that_are_older_than_the_policy_are_corrected_for() -> None:
    overlapping = {n for n in PUBLISHED if RECIPES[n].training.max_staleness > 0}
    alternating = {"grpo/deepseekmath-7b", "papo/qwen2.5-7b-as-printed"}
    assert set(PUBLISHED) - overlapping == alternating
    assert overlapping == {n for n in PUBLISHED if RECIPES[n].algorithm.correction != "none"}
