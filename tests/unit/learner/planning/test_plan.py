"""The plan of a recipe: what it finds, and what it warns of. A warning names the setting."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Recipe, load_recipe, parse_recipe

from deploy.compose import REDIS_MAXMEMORY
from deploy.placement import divide, on_cpus, parse
from services.learner.planning.footprint import total
from services.learner.planning.machine import GIB, Here, Machine, Options, machine_of
from services.learner.planning.plan import Plan, changed_recipe, make_plan, warnings
from tests.architecture.project import ROOT, name_of

pytestmark = pytest.mark.usefixtures("in_the_repository")
MACHINE = Machine(divide(2), gpu_bytes=80 * GIB, model_roots=(ROOT,))
BASE_MODEL = ROOT / "examples/arithmetic/base-model"
SEVEN = "Qwen/Qwen2.5-7B"
LONG = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}


def demo(**changes: Any) -> Recipe:
    """The demo's recipe with some tables changed."""
    data = load_recipe(ROOT / "recipes/demo.toml").model_dump()
    for table, values in changes.items():
        data[table] = data[table] | values if data.get(table) else values
    return parse_recipe(data)


def about(recipe: Recipe, *words: str, machine: Machine = MACHINE) -> list[str]:
    """The warnings of a plan that have all these words."""
    found = warnings(make_plan(recipe, machine))
    return [text for text in found if all(word in text for word in words)]


def on(line: str, **changes: Any) -> Machine:
    return replace(MACHINE, placement=parse(line), **changes)


def test_the_demo_is_all_there_and_warns_of_nothing() -> None:
    plan = make_plan(demo(), MACHINE)
    assert warnings(plan) == []
    assert [tasks.num_tasks for tasks in plan.tasks] == [4000, 512]
    assert plan.models[0].folder == BASE_MODEL
    assert plan.learner is not None
    assert plan.learner.peak < 3 * GIB
    assert plan.rollout is not None
    assert plan.rollout.responses_held == 256


def test_a_missing_model_is_named_unless_it_may_come_from_the_hub() -> None:
    recipe = demo(model={"path": SEVEN})
    assert about(recipe, SEVEN, "WEIR_MODEL_HUB")
    unknown = demo(model={"path": "someone/unheard-of"})
    assert make_plan(unknown, MACHINE).learner is make_plan(unknown, MACHINE).rollout is None
    assert about(unknown, "someone/unheard-of", "memory")
    assert not about(recipe, "WEIR_MODEL_HUB", machine=replace(MACHINE, model_hub=True))


def test_task_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "train.jsonl"
    broken.write_text('{"id": "a"}\n')
    for path, problem in ((tmp_path / "no.jsonl", "No such file"), (broken, "line 1")):
        assert about(demo(tasks={"train": str(path)}), "tasks.train", path.name, problem)


def test_every_held_out_file_is_looked_for_and_counted(tmp_path: Path) -> None:
    hard = tmp_path / "hard.jsonl"
    hard.write_text("".join(f'{{"id": "{n}", "prompt": "?", "answer": "1"}}\n' for n in range(3)))
    others = {"hard": {"held_out": str(hard), "samples": 2}, "gone": {"held_out": "gone.jsonl"}}
    recipe = demo(evaluation={"samples": 1, "tasks": 5, "others": others})
    assert make_plan(recipe, MACHINE).held_out == {"": 512, "hard": 3, "gone": 0}
    assert about(recipe, "evaluation.others.gone.held_out")


def a_model(folder: Path, *, weights: bool = True) -> Path:
    """The demo's model in another folder, whole or without its weights."""
    folder.mkdir(parents=True)
    for name in ("config.json", *(["model.safetensors"] if weights else [])):
        (folder / name).symlink_to(BASE_MODEL / name)
    return folder


@pytest.mark.parametrize(("hub", "weights"), [(True, True), (False, True), (True, False)])
def test_a_model_that_the_hub_has_given_before_is_found_where_the_hub_is_allowed(
    hub: bool, weights: bool, tmp_path: Path
) -> None:
    snapshot = a_model(tmp_path / "hub/models--some--model/snapshots/abc", weights=weights)
    plan = make_plan(demo(model={"path": "some/model"}), replace(MACHINE, model_hub=hub))
    assert plan.models[0].folder == (snapshot if hub and weights else None)


def test_a_model_without_safetensors_is_refused_as_the_job_refuses_it(tmp_path: Path) -> None:
    folder, machine = a_model(tmp_path / "m", weights=False), replace(MACHINE, model_roots=(ROOT,))
    allowed = replace(machine, model_roots=(ROOT, tmp_path))
    assert about(demo(model={"path": str(folder)}), "model.path", "safetensors", machine=allowed)
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml").model_dump()
    recipe["critic"]["path"] = str(folder)
    assert about(parse_recipe(recipe), "critic.path", "safetensors", machine=allowed)


def test_a_model_outside_the_allowed_roots_is_not_found(tmp_path: Path) -> None:
    recipe = demo(model={"path": str(a_model(tmp_path / "model"))})
    assert about(recipe, "WEIR_MODEL_ROOTS")
    assert not about(recipe, machine=replace(MACHINE, model_roots=(ROOT, tmp_path)))
    for path in ("a" * 5000, "../" * 40 + "etc"):
        assert make_plan(demo(model={"path": path}), MACHINE).models[0].folder is None


def test_lambda_above_the_order_safe_bound() -> None:
    assert about(demo(algorithm={"lambda_process": 1.1}), "algorithm.lambda_process", "1.058")
    assert about(demo(rollout={"group_size": 16}), "algorithm.lambda_process", "0.693")
    assert not about(demo(algorithm={"advantage": "grpo"}, rollout={"group_size": 16}))


def test_stale_samples_that_nothing_corrects_and_a_context_that_the_model_does_not_know() -> None:
    assert about(demo(model={"max_context": 257}), "model.max_context", "256")
    assert not about(demo(model={"max_context": 256}))
    stale = {"old_logprobs": "recompute"}
    assert about(demo(algorithm=stale), "training.max_staleness", "algorithm.correction")
    assert not about(demo(algorithm=stale | {"correction": "token_tis"}))
    assert not about(demo(algorithm=stale, training={"max_staleness": 0}))


def test_a_job_too_large_for_redis_names_the_least_maxmemory() -> None:
    least = 2 * make_plan(demo(), MACHINE).redis_bytes
    small = replace(MACHINE, redis_bytes=least - 2)
    assert about(demo(), "WEIR_REDIS_MAXMEMORY", f"{least:,}", machine=small)
    assert not about(demo(), machine=replace(MACHINE, redis_bytes=least))


@pytest.mark.parametrize(
    ("num_gpus", "stage", "advice"),
    [
        (4, 3, {"training.recompute_activations": True}),
        (4, 0, {"optimizer.zero_stage": 3, "training.recompute_activations": True}),
        (1, 3, {"optimizer.offload": "optimizer"}),
    ],
)
def test_a_learner_that_does_not_fit_names_what_makes_it_fit(
    num_gpus: int, stage: int, advice: dict[str, Any]
) -> None:
    training = {"recompute_activations": num_gpus == 1}
    recipe = demo(model=LONG, optimizer={"zero_stage": stage}, training=training)
    machine = replace(MACHINE, placement=divide(2 * num_gpus))
    settings = [f"{name} = {json.dumps(value)}" for name, value in advice.items()]
    (text,) = about(recipe, *settings, machine=machine)
    assert text.count(" = ") == len(advice)
    assert make_plan(changed_recipe(recipe, advice), machine).learner_fits


def test_where_the_host_cannot_take_the_optimizer_more_gpus_are_named() -> None:
    recomputed = {"recompute_activations": True}
    recipe = demo(model=LONG, optimizer={"zero_stage": 3}, training=recomputed)
    assert about(recipe, "4 GPUs", "learner=", machine=replace(MACHINE, host_bytes=96 * GIB))
    assert about(recipe, "optimizer.offload", machine=replace(MACHINE, host_bytes=300 * GIB))


def test_a_host_too_small_for_an_offload_is_named() -> None:
    optimizer = {"zero_stage": 3, "offload": "optimizer"}
    recipe = demo(model={"path": SEVEN, "dtype": "bfloat16"}, optimizer=optimizer)
    tight = replace(MACHINE, host_bytes=100 * GIB)
    plan = make_plan(recipe, tight)
    assert (plan.learner_fits, plan.host_fits, plan.works) == (True, False, False)
    assert about(recipe, "optimizer.offload", "90.0 usable GiB", machine=tight)
    assert not about(recipe, "optimizer.offload")  # how much there is is not known, not judged


def test_on_cpus_everything_is_in_the_memory_of_the_machine() -> None:
    laptop = replace(MACHINE, placement=on_cpus({}), host_bytes=16 * GIB, engine_cache_bytes=GIB)
    plan = make_plan(demo(), laptop)
    assert plan.learner is not None
    assert plan.rollout is not None
    taken = plan.learner.peak + total(plan.learner.host) + plan.rollout.weights.bytes + GIB
    assert sum(item.bytes for item in plan.host) == taken
    assert (plan.works, plan.seconds, warnings(plan)) == (True, (), [])
    large = demo(model={"path": SEVEN, "dtype": "bfloat16"})
    assert about(large, "14.4 usable GiB", "--gpus", machine=laptop)
    assert not about(large, "80", machine=laptop)


def test_a_sample_too_long_for_a_gpu_is_advised_to_be_shared() -> None:
    long: dict[str, Any] = {
        "model": {"path": SEVEN, "dtype": "bfloat16", "max_context": 200_000},
        "training": {"recompute_activations": True, "micro_batch_tokens": 200_000},
        "optimizer": {"zero_stage": 3},
    }
    eight = replace(MACHINE, placement=divide(16))
    advice = ("training.sequence_parallel = 2", "training.micro_batch_tokens = 100000")
    assert about(demo(**long), *advice, machine=eight)
    shared = {"sequence_parallel": 2, "micro_batch_tokens": 100_000}
    followed = long | {"training": long["training"] | shared}
    assert not about(demo(**followed), "training.", machine=eight)
    assert about(demo(**long), "sequence_parallel = 2", "2 GPUs")


def test_a_split_that_the_heads_do_not_allow_names_the_engine_and_the_heads() -> None:
    recipe = demo(
        model={"path": SEVEN, "dtype": "bfloat16"},
        optimizer={"zero_stage": 3},
        training={"recompute_activations": True},
    )
    wrong = on("learner=0-3 rollout=4-6")
    assert about(recipe, "rollout=4-6", "28", "WEIR_GPUS", machine=wrong)
    plan = make_plan(recipe, wrong)
    assert (plan.works, plan.seconds) == (False, ())
    assert make_plan(recipe, on("learner=0-3 rollout=4-7")).works


# ---------------------------------------------------------------------- the published recipes

RECIPES = sorted((ROOT / "recipes").glob("*/*.toml"))


def planned(path: Path) -> Plan:
    """On the machine that the recipe names, with the Redis of a GPU box."""
    recipe = load_recipe(path)
    assert recipe.machine is not None
    stack = {"WEIR_REDIS_MAXMEMORY": REDIS_MAXMEMORY, "WEIR_MODEL_HUB": "on"}
    return make_plan(recipe, machine_of(Options(), recipe.machine, stack, Here()))


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_every_published_recipe_fits_on_the_machine_that_it_names(path: Path) -> None:
    plan = planned(path)
    assert plan.works
    assert [text for text in warnings(plan) if not text.startswith("tasks.")] == []
