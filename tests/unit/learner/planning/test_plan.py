"""`weir plan`: the machine, what is found there, seconds, warnings with their remedy, the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol import recipe as recipes
from protocol.placement import PlacementError, divide, on_cpus, parse
from protocol.recipe import Recipe, load_recipe, parse_recipe
from transformers import GPT2Config, GPT2LMHeadModel

from deploy.compose import REDIS_MAXMEMORY
from services.chassis.deployment import DeploymentError
from services.data.__main__ import main as check_data
from services.learner import plan as command
from services.learner.plan import as_json, duration, resolved
from services.learner.planning.footprint import (
    BUILT_IN,
    Item,
    RolloutFootprint,
    total,
    trained_models,
)
from services.learner.planning.machine import GIB, KINDS, Here, Machine, Options, machine_of
from services.learner.planning.plan import (
    Plan,
    changed_recipe,
    make_plan,
    seconds_of,
    warnings,
)
from services.learner.training.model_check import count_parameters
from tests.architecture.project import ROOT, name_of
from tests.builders import a_recipe

MACHINE = Machine(divide(2), gpu_bytes=80 * GIB, model_roots=(ROOT,))
BASE_MODEL = ROOT / "examples/arithmetic/base-model"
QWEN = "Qwen/Qwen2.5-7B"
HALF = {"path": QWEN, "dtype": "bfloat16"}
LONG = HALF | {"max_context": 10240}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Paths are the project's, no model is downloaded, and the machine shows no GPU."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


# ---------------------------------------------------------------------- the machine

EIGHT = [f"nvidia{index}" for index in range(8)] + ["nvidiactl"]
LAPTOP = 16 * GIB
NAMED = recipes.Machine(gpus="learner=0-3 rollout=4-7", gpu_memory=141, host_memory=2000)


def machine(gpus: str | None = None, devices: Sequence[str] = (), **variables: str) -> Machine:
    return machine_of(Options(gpus), None, variables, Here(tuple(devices), LAPTOP))


@pytest.mark.parametrize(
    ("gpus", "variables", "devices", "line", "how"),
    [
        ("8", {}, [], "learner=0-3 rollout=4 rollout=5 rollout=6 rollout=7", "--gpus 8"),
        ("1", {}, EIGHT, "learner=0 rollout=0@0.5:turns", "--gpus 1"),
        ("learner=0,1 rollout=2-3", {}, EIGHT, "learner=0-1 rollout=2-3", "as --gpus says"),
        (None, {"WEIR_GPUS": "learner=a:0,b:0 rollout=b:1"}, EIGHT, None, "as WEIR_GPUS says"),
        (None, {}, EIGHT[:2], "learner=0 rollout=1", "half of the GPUs learn"),
        (None, {"CUDA_VISIBLE_DEVICES": "5"}, EIGHT, "learner=0 rollout=0@0.5:turns", "is shared"),
        (None, {}, [], "learner= rollout=", "shows no GPU"),
    ],
)
def test_the_placement_is_the_options_the_environments_or_the_machines(
    gpus: str | None, variables: dict[str, str], devices: list[str], line: str | None, how: str
) -> None:
    found = machine(gpus, devices, **variables)
    assert str(found.placement) == (line or variables["WEIR_GPUS"])
    assert how in found.how


@pytest.mark.parametrize(
    ("options", "here", "named", "gpu", "host"),
    [
        (Options(), Here(("nvidia0",), LAPTOP, 24 * GIB), NAMED, 24, 16),
        (Options(), Here(("nvidia0",), LAPTOP), NAMED, 141, 16),  # whose driver says nothing
        (Options(), Here((), LAPTOP), NAMED, 141, 2000),
        (Options(None, 40), Here(("nvidia0",), LAPTOP, 24 * GIB), None, 40, 16),
        (Options("8", 40, 500), Here(("nvidia0",), LAPTOP, 24 * GIB), NAMED, 40, 500),
        (Options("8"), Here(("nvidia0",), LAPTOP, 24 * GIB), None, 80, None),  # of another box
    ],
)
def test_an_option_comes_before_what_is_here_and_that_before_what_the_recipe_names(
    options: Options, here: Here, named: recipes.Machine | None, gpu: int, host: int | None
) -> None:
    found = machine_of(options, named, {}, here)
    assert (found.gpu_bytes, found.host_bytes) == (gpu * GIB, host and host * GIB)


@pytest.mark.parametrize(
    ("gpus", "cache", "learner", "engine"),
    [
        ("2", "", 72, 72),
        ("1", "", 69.6, 40),
        ("learner=0-3 rollout=0@0.6 rollout=1@0.2", "", 24, 16),  # on GPU 0
        ("2", "512", 72, 80),  # vLLM then has no limit, but for a shared engine its share
        ("learner=0 rollout=0@0.4", "512", 40, 32),
        ("learner=0 rollout=1-4 rollout=5,6@0.5", "", 72, 40),
    ],
)
def test_a_learner_has_what_engines_leave_and_the_smallest_engine_its_share(
    gpus: str, cache: str, learner: int, engine: int
) -> None:
    found = machine(gpus, WEIR_ROLLOUT_KV_CACHE_MIB=cache)
    assert found.learner_bytes == pytest.approx(learner * GIB)
    assert found.engine_bytes == pytest.approx(engine * GIB)
    assert found.shares_a_gpu == (learner < 72)


@pytest.mark.parametrize("gpus", ["0", "9" * 30, "eight", "learner=0", "learner=0 rollout=0"])
def test_gpus_that_cannot_be_are_named(gpus: str) -> None:
    with pytest.raises(PlacementError, match=r"^--gpus"):
        machine(gpus)
    wrong = recipes.Machine(gpus="learner=0", gpu_memory=80, host_memory=80)
    with pytest.raises(PlacementError, match=r"^machine\.gpus"):
        machine_of(Options(), wrong, {}, Here())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WEIR_REDIS_MAXMEMORY", "much"),
        ("WEIR_ROLLOUT_GPU_MEMORY", "5"),
        ("WEIR_MODEL_HUB", "yes"),
        ("WEIR_GPUS", "all"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises((DeploymentError, PlacementError), match=f"^{variable}"):
        machine(**{variable: value})


def test_a_gpu_is_of_the_kind_whose_memory_comes_nearest() -> None:
    for gib, name in ((12, "RTX 4090"), (48, "A100 SXM 40"), (79.6, "H100 SXM"), (139, "H200")):
        assert replace(MACHINE, gpu_bytes=int(gib * GIB)).kind.name == name
    assert replace(MACHINE, gpu_bytes=192 * GIB).kind is KINDS[-1]


# ---------------------------------------------------------------------- files


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


def a_model(folder: Path, *, weights: bool = True) -> Path:
    """The demo's model in another folder, whole or without its weights."""
    folder.mkdir(parents=True)
    for name in ("config.json", *(["model.safetensors"] if weights else [])):
        (folder / name).symlink_to(BASE_MODEL / name)
    return folder


def test_the_demo_is_all_there_and_warns_of_nothing() -> None:
    plan = make_plan(demo(), MACHINE)
    assert warnings(plan) == []
    assert [tasks.num_tasks for tasks in plan.tasks] == [4000, 512]
    assert plan.models[0].folder == BASE_MODEL
    assert plan.learner is not None
    assert plan.learner.peak < 3 * GIB
    assert plan.rollout is not None
    assert plan.rollout.responses_held == 256


def test_every_held_out_file_is_looked_for_and_counted(tmp_path: Path) -> None:
    hard = tmp_path / "hard.jsonl"
    hard.write_text("".join(f'{{"id": "{n}", "prompt": "?", "answer": "1"}}\n' for n in range(3)))
    others = {"hard": {"held_out": str(hard), "samples": 2}, "gone": {"held_out": "gone.jsonl"}}
    recipe = demo(evaluation={"samples": 1, "tasks": 5, "others": others})
    assert make_plan(recipe, MACHINE).held_out == {"": 512, "hard": 3, "gone": 0}
    assert about(recipe, "evaluation.others.gone.held_out", "No such file")
    hard.write_text('{"id": "a"}\n')
    assert about(demo(tasks={"train": str(hard)}), "tasks.train", hard.name, "line 1")


@pytest.mark.parametrize(("hub", "weights"), [(True, True), (False, True), (True, False)])
def test_a_model_that_the_hub_has_given_before_is_found_where_the_hub_is_allowed(
    hub: bool, weights: bool, tmp_path: Path
) -> None:
    snapshot = a_model(tmp_path / "hub/models--some--model/snapshots/abc", weights=weights)
    plan = make_plan(demo(model={"path": "some/model"}), replace(MACHINE, model_hub=hub))
    assert plan.models[0].folder == (snapshot if hub and weights else None)


def test_a_model_without_safetensors_is_refused_as_the_job_refuses_it(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "m", weights=False)
    allowed = replace(MACHINE, model_roots=(ROOT, tmp_path))
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


# ---------------------------------------------------------------------- seconds, by hand

WEIGHTS = 2 * 7_615_616_512
HEAD = 152064 * 3584
BODY = 7_615_616_512 - HEAD  # what a token is multiplied by: layers and head, not the embedding
FLOPS, PREFILL, BANDWIDTH = 989e12 * 0.25, 989e12 * 0.5, 3.35e12 * 0.6
# 128 responses of 1,024 tokens in the mean, of at most 2,048, behind prompts of 256.
PROMPTS = 16 * 256 * (2 * BODY + 2 * 256 * 3584 * 28) / PREFILL
CACHE = 128 * 1024 * (256 + 512) * 57_344
FORWARD = 128 * 1280 * (2 * BODY + 2 * 1280 * 3584 * 28) / FLOPS
CRITIC = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 50}}
CORRECTED = {"old_logprobs": "recompute", "correction": "token_tis"}
OFFLOAD = {"zero_stage": 3, "offload": "optimizer"}
JUDGE = {"verifier": "model_judge", "temperature": 1.0}
STALE = {"max_staleness": 1}
FOUR_TURNS = {
    "rollout": {"group_size": 8, "sampling": {"max_tokens": 512}},
    "environment": {"url": "http://games", "max_turns": 4},
}


def seconds(line: str = "", room: int = 58 * GIB, sequences: int = 256, **changes: Any) -> Any:
    """Of each part of a step, of the step and of the run, on H100s."""
    tables: dict[str, Any] = {
        "model": {"dtype": "bfloat16", "max_context": 3072},
        "rollout": {"group_size": 8, "sampling": {"max_tokens": 2048}},
        "training": {"groups_per_step": 16, "max_staleness": 0, "steps": 300},
    }
    for table, values in changes.items():
        tables[table] = tables.get(table, {}) | values
    recipe, shape, nothing = a_recipe(**tables), BUILT_IN[QWEN], Item("", 0, "")
    at = replace(MACHINE, placement=parse(line or "learner=0 rollout=1"))
    at = replace(at, engine_sequences=sequences)
    models = trained_models(recipe, shape, shape, at.placement.num_ranks, 1)
    rollout = RolloutFootprint(nothing, nothing, room, 57_344, 0, 0)
    held_out = {"": 1000, "easy": 16}
    return {s.what: s.seconds for s in seconds_of(recipe, models, at, rollout, held_out)}


@pytest.mark.parametrize(
    ("changes", "what", "expected"),
    [
        # Weights are read once a round; the longest response goes on alone to 2,048 tokens.
        ({}, "sampling", PROMPTS + (2048 * WEIGHTS + CACHE) / BANDWIDTH),
        (FOUR_TURNS, "sampling", PROMPTS + (2048 * WEIGHTS + CACHE) / BANDWIDTH),
        ({"sequences": 32}, "sampling", PROMPTS + (4096 * WEIGHTS + CACHE) / BANDWIDTH),
        ({"room": 32 * 1280 * 57_344}, "sampling", PROMPTS + (4096 * WEIGHTS + CACHE) / BANDWIDTH),
        ({"line": "learner=0-1 rollout=2"}, "training", 3 * FORWARD / 2),
        ({"training": {"recompute_activations": True}}, "training", 4 * FORWARD),
        ({"algorithm": {"divergence_weight": 0.04}}, "training", 4 * FORWARD),
        ({"algorithm": CORRECTED, "training": {"updates_per_batch": 2}}, "training", 4 * FORWARD),
        (CRITIC, "training", (3 + 4) * FORWARD - 4 * 128 * 1280 * 2 * HEAD / FLOPS),
        ({"model": {"lora": {"rank": 16}}}, "training", 2 * FORWARD),
        ({"model": {"lora": {"rank": 16}}}, "loading", 2 * 40_370_176 / 4.3e9),
        # Ten micro-batches of 16,384: the sum of gradients comes and goes with each, 4 bytes.
        (
            {"optimizer": OFFLOAD},
            "offloading",
            (10 * 8 + 8) * 7_615_616_512 / 2e10 + 7_615_616_512 / 1.6e9,
        ),
        # Half of the responses that are sampled at once, behind their prompts: 768 tokens.
        (
            {"training": STALE, "sequences": 32},
            "recomputing",
            32 * 768 * (2 * BODY + 2 * 768 * 3584 * 28) / PREFILL,
        ),
        ({"reward": {"process": JUDGE}}, "judging", 64 * 1200 / 9000),
        ({"reward": {"process": JUDGE, "process_for": "all"}}, "judging", 128 * 1200 / 9000),
        (
            {
                "reward": {
                    "outcome": JUDGE | {"samples": 2, "max_tokens": 1000},
                    "process": [JUDGE | {"reasoning_effort": "low"}],
                },
                "training": {"dynamic_sampling": True},
                "line": "learner=0 rollout=1 judge=2-3",
            },
            "judging",
            (512 * 1000 + 128 * 600) / 18000,
        ),
    ],
)
def test_a_part_of_a_step_takes_what_its_sum_by_hand_says(
    changes: dict[str, Any], what: str, expected: float
) -> None:
    assert seconds(**changes)[what] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"training": {"max_staleness": 0}}, None),
        ({"line": "learner=0 rollout=0@0.4"}, None),
        ({"sequences": 8}, ["sampling", "loading", "recomputing"]),
        ({"sequences": 8, "rollout": {"kv_after_sync": "keep"}}, ["sampling", "loading"]),
        ({"reward": {"process": JUDGE | {"samples": 32}}}, ["judging"]),
        (
            {"training": {"max_staleness": 0}, "reward": {"process": JUDGE | {"samples": 32}}},
            ["judging", "verifying", "loading", "training", "publishing"],
        ),
        ({"line": "learner=0 rollout=1 rollout=2"}, ["training", "publishing"]),
        (CRITIC, ["training", "publishing"]),  # which makes 50 steps alone
    ],
)
def test_sampling_and_training_overlap_where_samples_may_be_stale(
    changes: dict[str, Any], parts: list[str] | None
) -> None:
    found = seconds(**{"training": STALE, **changes})
    step, run = found.pop("a step"), found.pop("the run")
    assert step == pytest.approx(sum(found[part] for part in parts or found))
    assert run == pytest.approx((350 if changes is CRITIC else 300) * step)


@pytest.mark.parametrize("line", ["learner=0 rollout=1", "learner=0 rollout=0@0.4"])
def test_a_run_waits_for_what_of_its_evaluations_engines_have_no_time_for(line: str) -> None:
    easy = {"held_out": "easy.jsonl", "samples": 8, "every": 1}
    evaluation = {"samples": 8, "tasks": 512, "every": 2, "others": {"easy": easy}}
    found = seconds(line, evaluation=evaluation, tasks={"held_out": "held_out.jsonl"})
    sampling, step, run = found["sampling"], found["a step"], found["the run"]
    free = step - sampling - found["loading"] if line.endswith("rollout=1") else 0.0
    assert found["evaluating easy"] == sampling
    waiting = 151 * found["evaluating"] + 301 * sampling - 300 * free
    assert run == pytest.approx(300 * step + waiting)


# ---------------------------------------------------------------------- warnings, remedies

MANY = {"rollout": {"group_size": 16}}


@pytest.mark.parametrize(
    ("words", "changes", "without"),
    [
        ("lambda_process 1.058", {"algorithm": {"lambda_process": 1.1}}, {}),
        ("lambda_process 0.693", MANY, MANY | {"algorithm": {"advantage": "grpo"}}),
        ("max_context 256", {"model": {"max_context": 257}}, {"model": {"max_context": 256}}),
        (
            "max_staleness algorithm.correction",
            {"algorithm": {"old_logprobs": "recompute"}},
            {"algorithm": CORRECTED},
        ),
        (
            "max_staleness",
            {"algorithm": {"old_logprobs": "recompute"}},
            {"algorithm": {"old_logprobs": "recompute"}, "training": {"max_staleness": 0}},
        ),
    ],
)
def test_a_setting_that_does_not_do_what_one_expects_is_named(
    words: str, changes: dict[str, Any], without: dict[str, Any]
) -> None:
    assert about(demo(**changes), *words.split())
    assert not about(demo(**without))


def test_a_missing_model_is_named_unless_it_may_come_from_the_hub() -> None:
    recipe, hub = demo(model={"path": QWEN}), replace(MACHINE, model_hub=True)
    assert about(recipe, QWEN, "WEIR_MODEL_HUB")
    assert not about(recipe, "WEIR_MODEL_HUB", machine=hub)
    unknown = demo(model={"path": "someone/unheard-of"})
    assert make_plan(unknown, MACHINE).learner is make_plan(unknown, MACHINE).rollout is None
    assert about(unknown, "someone/unheard-of", "memory")


def test_a_job_too_large_for_redis_names_the_least_maxmemory() -> None:
    least = 2 * make_plan(demo(), MACHINE).redis_bytes
    small = replace(MACHINE, redis_bytes=least - 2)
    assert about(demo(), "WEIR_REDIS_MAXMEMORY", f"{least:,}", machine=small)
    assert not about(demo(), machine=replace(MACHINE, redis_bytes=least))


@pytest.mark.parametrize(
    ("num_gpus", "stage", "advice"),
    [
        (4, 3, {"training.recompute_activations": True}),
        (4, 1, {"optimizer.zero_stage": 3, "training.recompute_activations": True}),
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
    recipe, tight = demo(model=HALF, optimizer=OFFLOAD), replace(MACHINE, host_bytes=100 * GIB)
    plan = make_plan(recipe, tight)
    assert (plan.learner_fits, plan.host_fits, plan.works) == (True, False, False)
    assert about(recipe, "optimizer.offload", "90.0 usable GiB", machine=tight)
    assert not about(recipe, "optimizer.offload")  # how much there is is not known, not judged


def test_on_cpus_everything_is_in_the_memory_of_the_machine() -> None:
    laptop = replace(MACHINE, placement=on_cpus({}), host_bytes=LAPTOP, engine_cache_bytes=GIB)
    plan = make_plan(demo(), laptop)
    assert plan.learner is not None
    assert plan.rollout is not None
    taken = plan.learner.peak + total(plan.learner.host) + plan.rollout.weights.bytes + GIB
    assert total(plan.host) == taken
    assert (plan.works, plan.seconds, warnings(plan)) == (True, (), [])
    assert about(demo(model=HALF), "14.4 usable GiB", "--gpus", machine=laptop)
    assert not about(demo(model=HALF), "80", machine=laptop)


def test_on_cpus_micro_batches_are_as_large_as_the_memory_allows() -> None:
    laptop = replace(MACHINE, placement=on_cpus({}), host_bytes=48 * GIB, engine_cache_bytes=GIB)
    small = {"path": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": "float32", "max_context": 1024}
    plan = make_plan(demo(model=small), laptop)
    tokens = plan.recipe.training.micro_batch_tokens
    assert (plan.host_fits, 1024 < tokens < 16384) == (True, True)
    assert f"{tokens:,} tokens" in warnings(plan)[0]
    larger = replace(laptop, host_bytes=96 * GIB)
    assert make_plan(demo(model=small), larger).recipe.training.micro_batch_tokens == 16384


def test_parameters_of_other_families_are_counted(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2))
    model.save_pretrained(tmp_path)
    recipe = demo(model={"path": str(tmp_path)})
    allowed = replace(MACHINE, model_roots=(tmp_path,))
    assert make_plan(recipe, allowed).learner is None
    plan = make_plan(recipe, allowed, count_parameters)
    assert plan.shapes[0] is not None
    assert plan.shapes[0].parameters == model.num_parameters()
    assert plan.seconds == ()


def test_a_sample_too_long_for_a_gpu_is_advised_to_be_shared() -> None:
    def long(tokens: int, **training: Any) -> Recipe:
        training |= {"recompute_activations": True, "micro_batch_tokens": tokens}
        model = HALF | {"max_context": 200_000}
        return demo(model=model, training=training, optimizer={"zero_stage": 3})

    eight = replace(MACHINE, placement=divide(16))
    advice = ("training.sequence_parallel = 2", "training.micro_batch_tokens = 100000")
    assert about(long(200_000), *advice, machine=eight)
    assert not about(long(100_000, sequence_parallel=2), "training.", machine=eight)
    assert about(long(200_000), "sequence_parallel = 2", "2 GPUs")


def test_a_split_that_the_heads_do_not_allow_names_the_engine_and_the_heads() -> None:
    recomputed = {"recompute_activations": True}
    recipe = demo(model=HALF, optimizer={"zero_stage": 3}, training=recomputed)
    wrong, right = (
        replace(MACHINE, placement=parse(f"learner=0-3 rollout={gpus}")) for gpus in ("4-6", "4-7")
    )
    assert about(recipe, "rollout=4-6", "28", "WEIR_GPUS", machine=wrong)
    plan = make_plan(recipe, wrong)
    assert (plan.works, plan.seconds) == (False, ())
    assert make_plan(recipe, right).works


# ---------------------------------------------------------------------- the published recipes


def planned(path: Path) -> Plan:
    """On the machine that the recipe names, with the Redis of a GPU box."""
    recipe = load_recipe(path)
    assert recipe.machine is not None
    stack = {"WEIR_REDIS_MAXMEMORY": REDIS_MAXMEMORY, "WEIR_MODEL_HUB": "on"}
    return make_plan(recipe, machine_of(Options(), recipe.machine, stack, Here()))


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "recipes").glob("[!t]*/*.toml")),  # not the file that twins share
    ids=name_of,
)
def test_every_published_recipe_fits_on_the_machine_that_it_names(path: Path) -> None:
    plan = planned(path)
    assert plan.works
    assert [text for text in warnings(plan) if not text.startswith("tasks.")] == []


# ---------------------------------------------------------------------- the command


def page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed, with one space where there are several."""
    assert command.main(arguments) == 0
    return re.sub(" +", " ", capsys.readouterr().out)


def test_prompts_that_do_not_fit_are_counted_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f'{{"id": "{n}", "prompt": "{"1+" * n}1=", "answer": "1"}}\n' for n in (1, 60)]
    (tmp_path / "train.jsonl").write_text("".join(lines))
    (tmp_path / "held_out.jsonl").write_text(lines[0])
    files = {"train": str(tmp_path / "train.jsonl"), "held_out": str(tmp_path / "held_out.jsonl")}
    recipe = "\n".join(resolved(demo(tasks=files)))
    (tmp_path / "recipe.toml").write_text(recipe)
    shown = page(capsys, str(tmp_path / "recipe.toml"))
    assert "train.jsonl: 1 of 2 prompts do not fit; the first one: task '60'" in shown
    assert "\n1 warning\n" in shown
    assert check_data(["check", files["train"], "--recipe", str(tmp_path / "recipe.toml")]) == 0
    assert "\n1 of 2 prompts do not fit" in f"\n{capsys.readouterr().out}"


def test_the_resolved_recipe_is_toml_that_means_the_same() -> None:
    recipes = ROOT / "recipes"
    for path in {*recipes.rglob("*.toml")} - {*recipes.glob("tiny/*.toml")}:
        recipe = load_recipe(path)
        assert parse_recipe(tomllib.loads("\n".join(resolved(recipe)))) == recipe, path


def test_what_the_file_left_out_is_marked() -> None:
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml")
    lines = ["gamma = 1.0", "ddof = 1  # default", "# value_clip is not set  # default"]
    assert set(lines) < set(resolved(recipe))
    defaults = set(as_json(make_plan(recipe, MACHINE))["defaults"])
    assert {"algorithm.ddof", "rollout.sampling.top_p", "critic.optimizer.betas"} < defaults
    assert "critic.optimizer.learning_rate" not in defaults


LINE = "learner=0-3 rollout=4-6 rollout=7-8 rollout=9@0.5 judge=9@0.4 idle=10"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["recipes/demo.toml", "--gpus", "8"],
            ["temperature = 1.3", "4000 tasks", "604,288 x 4 bytes", "\nno warnings"],
        ),
        (["recipes/demo.toml"], ["Placement: on CPUs"]),
        (
            ["examples/environments/higher-or-lower.toml"],
            ["step, at most 5,120 ", "min(max_turns 5 x max_tokens 8, max_context 96 - 1)"],
        ),
        (
            ["recipes/vapo/qwen2.5-32b.toml"],  # about the machine that it names
            [
                "Placement: learner=0-3 rollout=4-7 (",
                "critic: Adam's moments 238.3 GiB 31.99 B x 8 bytes",
                "\n! ",
            ],
        ),
        (
            ["recipes/dapo/qwen2.5-32b.toml"],
            [
                "\nthe run 171 days (313 steps) x 46,740.3 s",
                " x 46,740.3 s + 175,187 s of waiting for 64 evaluations",
            ],
        ),
        (
            ["recipes/papo/qwen2.5-7b.toml", "--gpus", LINE],
            [
                f"\nPlacement: {LINE} (as --gpus says)",
                "\npeak 47.2 GiB",
                "\nfits 72.0 GiB are usable",
                "of the smallest engine, rollout=9@0.5\n",
                "\nfits 40.0 GiB are usable",
                "\ndoes not work rollout=4-6: ",  # its heads cannot be split so
            ],
        ),
    ],
)
def test_the_page_shows_the_recipe_what_it_takes_and_what_fits(
    arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, *arguments)
    assert [words for words in shown if words not in text] == []


def test_the_readme_of_the_recipes_has_the_time_of_each_run() -> None:
    text = (ROOT / "recipes/README.md").read_text()
    told = re.findall(r"^\| `(\S+/\S+\.toml)` .*\| ([\d.]+ (?:min|h|days))\b", text, re.MULTILINE)
    assert {name for name, _ in told} == {
        str(path.relative_to(ROOT / "recipes"))
        for path in (ROOT / "recipes").glob("[!t]*/*.toml")  # not those below tiny
    }
    for name, time in told:
        recipe = load_recipe(ROOT / "recipes" / name)
        run = make_plan(recipe, machine_of(Options(), recipe.machine, {}, Here((), LAPTOP)))
        assert duration(run.seconds[-1].seconds) == time, name


def test_json_holds_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    path = "recipes/tiny/dapo/qwen2.5-32b.toml"
    data = json.loads(page(capsys, path, "--json"))
    plan = make_plan(load_recipe(ROOT / path), MACHINE)
    assert plan.learner is not None
    assert data["learner"]["peak"] == plan.learner.peak
    assert data["in_flight"] == {"groups": 64, "responses": 512}
    assert data["tokens_per_step"] == 128 * 48
    assert data["redis"]["bytes"] == (512 + 512) * 96 * 16
    assert data["recipe"]["training"]["dynamic_sampling"] is True
    assert data["warnings"] == []
    assert data["host"]["bytes"] == sum(item["bytes"] for item in data["host"]["items"])
    assert all(data[part]["fits"] is True for part in ("host", "learner", "rollout"))
    assert data["seconds_by_arithmetic"] is None  # of a float32 model


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-file.toml"], "no-such-file.toml"),
        (["README.md"], "README.md"),
        (["recipes/demo.toml", "--gpus", "learner=0"], "--gpus"),
    ],
)
def test_what_cannot_be_read_is_bad_input(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"weir: {named}: ")


@pytest.mark.parametrize("gib", ["inf", "0", "nan"])
def test_an_impossible_machine_is_bad_input(gib: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["recipes/demo.toml", "--gpu-memory", gib])
    assert f"--gpu-memory: {gib}" in capsys.readouterr().err


def test_a_plan_starts_no_engine_and_loads_none() -> None:
    program = (
        "import sys; from services.learner import plan; "
        "plan.main(['recipes/demo.toml', '--json']); "
        "heavy = {'vllm', 'redis'}; "
        "sys.exit(sorted(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
