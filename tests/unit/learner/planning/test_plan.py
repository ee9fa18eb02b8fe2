"""`weir plan`: the machine, files, seconds, warnings with their remedy, the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
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
from services.learner.plan import BAD_INPUT, resolved_toml, to_json
from services.learner.planning.advice import change_recipe, find_problems, warnings
from services.learner.planning.footprint import Item, RolloutFootprint, total, trained_models
from services.learner.planning.machine import (
    LocalMachine,
    Machine,
    Options,
    resolve_machine,
)
from services.learner.planning.plan import make_plan
from services.learner.planning.seconds import Estimate
from services.learner.planning.shapes import BUILT_IN
from services.learner.planning.units import GIB, format_range
from services.learner.training.model_check import count_parameters
from tests.architecture.project import ROOT, name_of
from tests.builders import a_recipe

MACHINE = Machine(
    divide(2),
    gpu_bytes=80 * GIB,
    model_roots=(ROOT,),
)
BASE_MODEL = ROOT / "examples/arithmetic/base-model"
QWEN = "Qwen/Qwen2.5-7B"
HALF = {"path": QWEN, "dtype": "bfloat16"}
LONG = HALF | {"max_context": 10240}
RECOMPUTED = {"recompute_activations": True}
Changes = dict[str, Any]


@pytest.fixture(autouse=True)
def isolate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Paths are the project's, no model is downloaded, and the machine shows no GPU."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


# ---------------------------------------------------------------------- the machine

EIGHT = (*(f"nvidia{index}" for index in range(8)), "nvidiactl")
LAPTOP = 16 * GIB
WITH_GPU = LocalMachine(("nvidia0",), LAPTOP, 24 * GIB)
NAMED = recipes.Machine(gpus="learner=0-3 rollout=4-7", gpu_memory=141, host_memory=2000)


def resolve(gpus: str | None = None, devices: tuple[str, ...] = (), **variables: str) -> Machine:
    return resolve_machine(Options(gpus), None, variables, LocalMachine(devices, LAPTOP))


@pytest.mark.parametrize(
    ("gpus", "variables", "devices", "line", "how"),
    [
        ("8", {}, (), "learner=0-3 rollout=4 rollout=5 rollout=6 rollout=7", "--gpus 8"),
        ("learner=0,1 rollout=2-3", {}, EIGHT, "learner=0-1 rollout=2-3", "as --gpus says"),
        (None, {"WEIR_GPUS": "learner=a:0,b:0 rollout=b:1"}, EIGHT, None, "as WEIR_GPUS says"),
        (None, {}, EIGHT[:2], "learner=0 rollout=1", "half of the GPUs learn"),
        (None, {}, (), "learner= rollout=", "shows no GPU"),
    ],
)
def test_the_placement_comes_from_an_option_a_variable_or_the_machine(
    gpus: str | None, variables: dict[str, str], devices: Any, line: str | None, how: str
) -> None:
    machine = resolve(gpus, devices, **variables)
    assert str(machine.placement) == (line or variables["WEIR_GPUS"])
    assert how in machine.how


@pytest.mark.parametrize(
    ("options", "local", "named", "gpu", "host"),
    [
        (Options(), WITH_GPU, NAMED, 24, 16),
        (Options(), replace(WITH_GPU, gpu_bytes=None), NAMED, 141, 16),  # from a silent driver
        (Options(), LocalMachine((), LAPTOP), NAMED, 141, 2000),
        (Options("8", 40, 500), WITH_GPU, NAMED, 40, 500),
        (Options("8"), WITH_GPU, None, 80, None),  # another machine
    ],
)
def test_memory_comes_from_an_option_the_machine_or_the_recipe(
    options: Options, local: LocalMachine, named: Any, gpu: int, host: int | None
) -> None:
    machine = resolve_machine(options, named, {}, local)
    assert (machine.gpu_bytes, machine.host_bytes) == (gpu * GIB, host and host * GIB)


@pytest.mark.parametrize(
    ("gpus", "cache", "learner", "engine"),
    [
        ("2", "", 72, 72),
        ("1", "", 69.6, 40),
        ("learner=0-3 rollout=0@0.6 rollout=1@0.2", "", 24, 16),  # on GPU 0
        ("2", "512", 72, 80),  # then vLLM has no limit, except as a shared engine
        ("learner=0 rollout=0@0.4", "512", 40, 32),
        ("learner=0 rollout=1-4 rollout=5,6@0.5", "", 72, 40),
    ],
)
def test_learner_and_smallest_engine_share_a_gpu(
    gpus: str, cache: str, learner: int, engine: int
) -> None:
    machine = resolve(gpus, WEIR_ROLLOUT_KV_CACHE_MIB=cache)
    assert machine.learner_bytes == pytest.approx(learner * GIB)
    assert machine.engine_bytes == pytest.approx(engine * GIB)
    assert machine.shares_a_gpu == (learner < 72)


@pytest.mark.parametrize(
    ("options", "named", "variables", "source"),
    [
        *((Options(gpus), None, {}, "--gpus") for gpus in ("0", "9" * 30, "eight")),
        (
            Options(),
            NAMED.model_copy(update={"gpus": "learner=0"}),
            {},
            "machine.gpus",
        ),
        (Options(), None, {"WEIR_REDIS_MAXMEMORY": "much"}, "WEIR_REDIS_MAXMEMORY"),
        (Options(), None, {"WEIR_ROLLOUT_GPU_MEMORY": "5"}, "WEIR_ROLLOUT_GPU_MEMORY"),
        (Options(), None, {"WEIR_GPUS": "all"}, "WEIR_GPUS"),
    ],
)
def test_a_wrong_machine_is_refused_with_its_source(
    options: Options, named: Any, variables: dict[str, str], source: str
) -> None:
    with pytest.raises((DeploymentError, PlacementError), match=f"^{source}"):
        resolve_machine(options, named, variables, LocalMachine())


# ---------------------------------------------------------------------- files


def demo(**changes: Any) -> Recipe:
    """The demo's recipe with some tables changed."""
    tables = load_recipe(ROOT / "recipes/demo.toml").model_dump()
    for table, values in changes.items():
        tables[table] = tables[table] | values if tables.get(table) else values
    return parse_recipe(tables)


def find_warnings(recipe: Recipe, *words: str, machine: Machine = MACHINE) -> list[str]:
    """The problems and warnings of a plan that have all these words."""
    plan = make_plan(recipe, machine)
    texts = [*find_problems(plan), *warnings(plan)]
    return [text for text in texts if all(word in text for word in words)]


def link_model(folder: Path, *, weights: bool = True) -> Path:
    """The demo's model in another folder, whole or without its weights."""
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors")[: 1 + weights]:
        (folder / name).symlink_to(BASE_MODEL / name)
    return folder


def write_tasks(path: Path, *prompts: str) -> Path:
    rows = (
        {
            "id": str(n),
            "prompt": prompt,
            "answer": "1",
        }
        for n, prompt in enumerate(prompts)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_tasks_of_every_evaluation_are_counted(tmp_path: Path) -> None:
    hard = write_tasks(tmp_path / "hard.jsonl", *"???")
    files = {
        "hard": {"held_out": str(hard), "samples": 2},
        "gone": {"held_out": "gone.jsonl"},
    }
    recipe = demo(evaluation={"samples": 1, "tasks": 5, "others": files})
    assert make_plan(recipe, MACHINE).held_out == {"": 512, "hard": 3, "gone": 0}
    assert find_warnings(recipe, "evaluation.others.gone.held_out", "No such file")
    hard.write_text('{"id": "a"}\n')
    recipe = demo(tasks={"train": str(hard)})
    assert find_warnings(recipe, "tasks.train", hard.name, "line 1")


@pytest.mark.parametrize(
    ("hub", "weights"),
    [
        (True, True),
        (False, True),
        (True, False),
    ],
)
def test_a_downloaded_model_is_found_if_the_hub_is_allowed(
    hub: bool, weights: bool, tmp_path: Path
) -> None:
    snapshot = link_model(tmp_path / "hub/models--some--model/snapshots/abc", weights=weights)
    plan = make_plan(
        demo(model={"path": "some/model"}),
        replace(MACHINE, model_hub=hub),
    )
    assert plan.models[0].folder == (snapshot if hub and weights else None)


def test_a_plan_names_what_every_gateway_refuses() -> None:
    hot = {"sampling": {"max_tokens": 48, "temperature": 3.0}}
    assert find_warnings(demo(rollout=hot), "rollout.sampling.temperature: must be 0.01 to 2")


def test_a_model_that_a_job_would_refuse_is_named(tmp_path: Path) -> None:
    machine = replace(MACHINE, model_roots=(ROOT, tmp_path))
    weightless = {"path": str(link_model(tmp_path / "weightless", weights=False))}
    assert find_warnings(demo(model=weightless), "model.path", "safetensors", machine=machine)
    with_critic = demo(algorithm={"advantage": "gae"}, critic=weightless)
    assert find_warnings(with_critic, "critic.path", "safetensors", machine=machine)
    outside = demo(model={"path": str(link_model(tmp_path / "model"))})
    assert find_warnings(outside, "WEIR_MODEL_ROOTS")
    assert not find_warnings(outside, machine=machine)
    unknown = demo(model={"path": "someone/unheard-of"})
    assert make_plan(unknown, MACHINE).learner is make_plan(unknown, MACHINE).rollout is None
    assert find_warnings(unknown, "someone/unheard-of", "memory")
    assert find_warnings(unknown, "someone/unheard-of", "WEIR_MODEL_HUB")
    assert not find_warnings(unknown, "WEIR_MODEL_HUB", machine=replace(MACHINE, model_hub=True))


# ---------------------------------------------------------------------- seconds, by hand

WEIGHTS = 2 * 7_615_616_512
HEAD = 152064 * 3584
BODY = 7_615_616_512 - HEAD  # parameters that multiply a token: layers and head, no embedding
FLOPS = 989e12 * 0.4
PREFILL = 989e12 * 0.5
BANDWIDTH = 3.35e12 * 0.45
# 128 responses with a mean of 1,024 and at most 2,048 tokens, after prompts of 256.
PROMPTS = 16 * 256 * (2 * BODY + 2 * 256 * 3584 * 28) / PREFILL
CACHE = 128 * 1024 * (256 + 512) * 57_344
TOKEN = 2 * BODY + 2 * 1280 * 3584 * 28
FORWARD = 128 * 1280 * (TOKEN + 3e9) / FLOPS  # 3e9 cost as much as the rest of a pass
CRITIC = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 50}}
CORRECTED = {"old_logprobs": "recompute", "correction": "token_tis"}
OFFLOAD = {"zero_stage": 3, "offload": "optimizer"}
JUDGE = {"verifier": "model_judge", "temperature": 1.0}
MANY_CALLS = {"reward": {"process": JUDGE | {"samples": 32}}}
SYNCHRONOUS = {"training": {"max_staleness": 0}}
STALE = {"max_staleness": 1}
TWO_JUDGES = {
    "outcome": JUDGE | {"samples": 2, "max_tokens": 1000},
    "process": [JUDGE | {"reasoning_effort": "low"}],
}


def estimate(
    line: str = "learner=0 rollout=1",
    room: int = 58 * GIB,
    sequences: int = 256,
    flops_used: float | None = None,
    **changes: Any,
) -> dict[str, float]:
    """Seconds of each part of a step, of the step and of the run, on H100s."""
    tables: Changes = {
        "model": {"dtype": "bfloat16", "max_context": 3072},
        "rollout": {"group_size": 8, "sampling": {"max_tokens": 2048}},
        "training": {"groups_per_step": 16, "max_staleness": 0, "steps": 300},
    }
    for table, values in changes.items():
        tables[table] = tables.get(table, {}) | values
    recipe = a_recipe(**tables)
    machine = replace(MACHINE, placement=parse(line), engine_sequences=sequences)
    machine = replace(machine, flops_used=flops_used)
    shape = BUILT_IN[QWEN]
    models = trained_models(recipe, shape, shape, machine.placement.num_ranks, 1)
    nothing = Item("", 0, "")
    rollout = RolloutFootprint(nothing, nothing, room, 57_344, 0, 0)
    spans = Estimate(recipe, models, machine, rollout).spans({"": 1000, "easy": 16})
    return {span.what: span.seconds for span in spans}


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        # Weights are read once a round; at the end the longest response has 2,048 tokens.
        (
            {"sequences": 32},
            "sampling",
            PROMPTS + (4096 * WEIGHTS + CACHE) / BANDWIDTH,
        ),
        (
            {"room": 32 * 1280 * 57_344},
            "sampling",
            PROMPTS + (4096 * WEIGHTS + CACHE) / BANDWIDTH,
        ),
        (
            {"algorithm": CORRECTED, "training": {"updates_per_batch": 2}},
            "training",
            4 * FORWARD,
        ),
        (CRITIC, "training", (3 + 4) * FORWARD - 4 * 128 * 1280 * 2 * HEAD / FLOPS),
        (
            {"model": {"lora": {"rank": 16}}},
            "training",
            2 * FORWARD,
        ),
        (
            {"model": {"lora": {"rank": 16}}},
            "loading",
            2 * 40_370_176 / 4.3e9,
        ),
        # An adapter is not written into pinned memory.
        (
            {"model": {"lora": {"rank": 16}}},
            "publishing",
            2 * 40_370_176 / 4e9,
        ),
        ({}, "publishing", WEIGHTS / 2e10),
        ({}, "verifying", 2 * WEIGHTS / (8 * 1.7e9)),
        ({"line": "learner=0 rollout=1-2"}, "loading", WEIGHTS / 2 / 4.3e9),
        ({"algorithm": {"divergence_weight": 0.1}}, "training", 4 * FORWARD),
        ({"flops_used": 0.5}, "training", 3 * 128 * 1280 * TOKEN / (989e12 * 0.5)),
        # Each of ten micro-batches of 16,384 tokens moves 4 bytes of the sum both ways.
        (
            {"optimizer": OFFLOAD},
            "offloading",
            (10 * 8 + 8) * 7_615_616_512 / 2e10 + 7_615_616_512 / 1.6e9,
        ),
        # Half of the mean response after its prompt: 768 tokens.
        (
            {"training": STALE, "sequences": 32},
            "recomputing",
            32 * 768 * (2 * BODY + 2 * 768 * 3584 * 28) / PREFILL,
        ),
        (
            {
                "line": "learner=0 rollout=1 judge=2-3",
                "training": {"dynamic_sampling": True},
                "reward": TWO_JUDGES,
            },
            "judging",
            (512 * 1000 + 128 * 600) / 18000,
        ),
    ],
)
def test_a_part_of_a_step_takes_its_sum_by_hand(
    changes: Changes, part: str, expected: float
) -> None:
    assert estimate(**changes)[part] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (SYNCHRONOUS, None),
        ({"sequences": 8}, ["sampling", "loading", "recomputing"]),
        ({"sequences": 8, "rollout": {"kv_after_sync": "keep"}}, ["sampling", "loading"]),
        (MANY_CALLS, ["judging"]),
        (CRITIC, ["training", "publishing"]),  # with 50 more steps of the critic
    ],
)
def test_sampling_and_training_overlap_if_samples_may_be_stale(
    changes: Changes, parts: list[str] | None
) -> None:
    seconds = estimate(**{"training": STALE, **changes})
    step = seconds.pop("a step")
    run = seconds.pop("the run")
    assert step == pytest.approx(sum(seconds[part] for part in parts or seconds))
    assert run == pytest.approx((350 if changes is CRITIC else 300) * step)


# ---------------------------------------------------------------------- warnings, remedies

UNCORRECTED = {"algorithm": {"old_logprobs": "recompute"}}


@pytest.mark.parametrize(
    ("words", "wrong", "right"),
    [
        ("lambda_process 1.058", {"algorithm": {"lambda_process": 1.1}}, {}),
        (
            "max_context 256",
            {"model": {"max_context": 257}},
            {"model": {"max_context": 256}},
        ),
        ("max_staleness algorithm.correction", UNCORRECTED, {"algorithm": CORRECTED}),
        ("max_staleness", UNCORRECTED, UNCORRECTED | SYNCHRONOUS),
    ],
)
def test_a_setting_with_a_surprising_effect_is_named(
    words: str, wrong: Changes, right: Changes
) -> None:
    assert find_warnings(demo(**wrong), *words.split())
    assert not find_warnings(demo(**right))


def test_a_job_too_large_for_redis_names_the_smallest_maxmemory() -> None:
    minimum = 2 * make_plan(demo(), MACHINE).redis_bytes
    small = replace(MACHINE, redis_bytes=minimum - 2)
    assert find_warnings(demo(), "WEIR_REDIS_MAXMEMORY", f"{minimum:,}", machine=small)
    assert not find_warnings(demo(), machine=replace(MACHINE, redis_bytes=minimum))


@pytest.mark.parametrize(
    ("num_gpus", "stage", "advice"),
    [
        (4, 3, {"training.recompute_activations": True}),
        (4, 1, {"optimizer.zero_stage": 3, "training.recompute_activations": True}),
        (1, 3, {"optimizer.offload": "optimizer"}),
    ],
)
def test_a_learner_that_does_not_fit_names_settings_that_make_it_fit(
    num_gpus: int, stage: int, advice: Changes
) -> None:
    training = {"recompute_activations": num_gpus == 1}
    recipe = demo(model=LONG, optimizer={"zero_stage": stage}, training=training)
    machine = replace(MACHINE, placement=divide(2 * num_gpus))
    settings = [f"{name} = {json.dumps(value)}" for name, value in advice.items()]
    (text,) = find_warnings(recipe, *settings, machine=machine)
    assert text.count(" = ") == len(advice)
    assert make_plan(change_recipe(recipe, advice), machine).learner_fits


def test_the_memory_of_a_node_decides_between_an_offload_and_more_gpus() -> None:
    recipe = demo(model=LONG, optimizer={"zero_stage": 3}, training=RECOMPUTED)
    small = replace(MACHINE, host_bytes=96 * GIB)
    assert find_warnings(recipe, "4 GPUs", "learner=", machine=small)
    offloading = demo(model=HALF, optimizer=OFFLOAD)
    plan = make_plan(offloading, small)
    assert (plan.learner_fits, plan.host_fits, plan.works) == (True, False, False)
    assert find_warnings(offloading, "optimizer.offload", "86.4 usable GiB", machine=small)
    assert not find_warnings(offloading, "optimizer.offload")  # the node's memory is unknown


def test_on_cpus_everything_is_in_the_memory_of_the_machine() -> None:
    laptop = replace(
        MACHINE,
        placement=on_cpus({}),
        host_bytes=LAPTOP,
        engine_cache_bytes=GIB,
    )
    plan = make_plan(demo(), laptop)
    assert plan.learner is not None
    assert plan.rollout is not None
    learner_bytes = plan.learner.peak + total(plan.learner.host)
    assert total(plan.host) == learner_bytes + plan.rollout.weights.bytes + GIB
    assert (plan.works, plan.seconds, warnings(plan)) == (True, (), [])
    assert find_warnings(demo(model=HALF), "14.4 usable GiB", "--gpus", machine=laptop)
    # Micro-batches are as large as the memory allows.
    small = {"path": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": "float32", "max_context": 1024}
    plan, larger = (
        make_plan(
            demo(model=small),
            replace(laptop, host_bytes=gib * GIB),
        )
        for gib in (48, 96)
    )
    tokens = plan.recipe.training.micro_batch_tokens
    assert (plan.host_fits, 1024 < tokens < 16384) == (True, True)
    assert f"{tokens:,} tokens" in warnings(plan)[0]
    assert larger.recipe.training.micro_batch_tokens == 16384


def test_parameters_of_other_families_are_counted(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2))
    model.save_pretrained(tmp_path)
    recipe = demo(model={"path": str(tmp_path)})
    machine = replace(MACHINE, model_roots=(tmp_path,))
    assert make_plan(recipe, machine).learner is None
    plan = make_plan(recipe, machine, count_parameters)
    assert plan.shapes[0] is not None
    assert plan.shapes[0].parameters == model.num_parameters()
    assert plan.seconds == ()


def test_sharing_is_advised_for_a_sample_too_long_for_a_gpu() -> None:
    def long(tokens: int, **training: Any) -> Recipe:
        training |= RECOMPUTED | {"micro_batch_tokens": tokens}
        model = HALF | {"max_context": 200_000}
        return demo(model=model, training=training, optimizer={"zero_stage": 3})

    eight = replace(MACHINE, placement=divide(16))
    advice = ("training.sequence_parallel = 2", "training.micro_batch_tokens = 100000")
    assert find_warnings(long(200_000), *advice, machine=eight)
    assert not find_warnings(long(100_000, sequence_parallel=2), "training.", machine=eight)
    assert find_warnings(long(200_000), "sequence_parallel = 2", "2 GPUs")


def test_an_engine_that_cannot_split_the_heads_is_named() -> None:
    recipe = demo(model=HALF, optimizer={"zero_stage": 3}, training=RECOMPUTED)
    wrong = replace(MACHINE, placement=parse("learner=0-3 rollout=4-6"))
    assert find_warnings(recipe, "rollout=4-6", "28", "WEIR_GPUS", machine=wrong)
    plan = make_plan(recipe, wrong)
    assert (plan.works, plan.seconds) == (False, ())
    right = replace(MACHINE, placement=parse("learner=0-3 rollout=4-7"))
    assert make_plan(recipe, right).works


# ---------------------------------------------------------------------- the published recipes

PUBLISHED = sorted((ROOT / "recipes").glob("[!t]*/*.toml"))  # not those below tiny


UNIT = r"(?:min|h|days)"
README_ROW = re.compile(
    rf"^\| `(\S+/\S+\.toml)` .*\| ([\d.]+(?: {UNIT})? to [\d.]+ {UNIT})\b", re.MULTILINE
)
TIMES = dict(README_ROW.findall((ROOT / "recipes/README.md").read_text()))


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_a_published_recipe_fits_on_its_machine_in_the_time_of_the_readme(path: Path) -> None:
    recipe = load_recipe(path)
    variables = {"WEIR_REDIS_MAXMEMORY": REDIS_MAXMEMORY, "WEIR_MODEL_HUB": "on"}
    machine = resolve_machine(Options(), recipe.machine, variables, LocalMachine())
    plan = make_plan(recipe, machine)
    assert plan.works
    texts = [*find_problems(plan), *warnings(plan)]
    assert [text for text in texts if not text.startswith("tasks.")] == []
    name = str(path.relative_to(ROOT / "recipes"))
    assert format_range(*plan.seconds[-1].range) == TIMES[name]


# ---------------------------------------------------------------------- the command


def print_page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output, with one space instead of several."""
    status = command.main(arguments)
    output = capsys.readouterr().out
    has_problems = "it has problems" in output or '"problems": [\n' in output
    assert status == (BAD_INPUT if has_problems else 0)
    return re.sub(" +", " ", output)


def test_prompts_that_do_not_fit_are_counted_in_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_tasks(tmp_path / "train.jsonl", "1+1=", f"{'1+' * 60}1=")
    held_out = write_tasks(tmp_path / "held_out.jsonl", "1+1=")
    recipe = tmp_path / "recipe.toml"
    files = {"train": str(train), "held_out": str(held_out)}
    recipe.write_text("\n".join(resolved_toml(demo(tasks=files))))
    page = print_page(capsys, str(recipe))
    assert "train.jsonl: 1 of 2 prompts do not fit; the first one: task '1'" in page
    assert "\n1 warning\n" in page
    assert check_data(["check", str(train), "--recipe", str(recipe)]) == 0
    assert "\n1 of 2 prompts do not fit" in f"\n{capsys.readouterr().out}"


def test_the_resolved_recipe_is_toml_with_the_same_meaning() -> None:
    folder = ROOT / "recipes"
    for path in {*folder.rglob("*.toml")} - {*folder.glob("tiny/*.toml")}:
        recipe = load_recipe(path)
        assert parse_recipe(tomllib.loads("\n".join(resolved_toml(recipe)))) == recipe, path


def test_defaults_are_marked() -> None:
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml")
    lines = ["gamma = 1.0", "ddof = 1  # default", "# value_clip is not set  # default"]
    assert set(lines) < set(resolved_toml(recipe))
    defaults = set(to_json(make_plan(recipe, MACHINE))["defaults"])
    assert {"algorithm.ddof", "critic.optimizer.betas"} < defaults
    assert "critic.optimizer.learning_rate" not in defaults


LINE = "learner=0-3 rollout=4-6 rollout=7-8 rollout=9@0.5 judge=9@0.4 idle=10"


@pytest.mark.parametrize(
    ("arguments", "texts"),
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
            ["recipes/vapo/qwen2.5-32b.toml"],
            ["critic: Adam's moments 238.3 GiB 31.99 B x 8 bytes", "\n! "],
        ),
        (
            ["recipes/dapo/qwen2.5-32b.toml"],
            ["a step 12 to 22 h ", " x 62,298.1 s + 233,572 s of waiting for 64 evaluations"],
        ),
        (
            ["recipes/papo/qwen2.5-7b.toml", "--gpus", LINE],
            [
                f"\nPlacement: {LINE} (as --gpus says)",
                "\nfits 72.0 GiB are usable",
                "of the smallest engine, rollout=9@0.5\n",
                "\nfits 40.0 GiB are usable",
                "\ndoes not work rollout=4-6: ",
            ],
        ),
    ],
)
def test_the_page_shows_the_recipe_its_memory_and_whether_it_fits(
    arguments: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = print_page(capsys, *arguments)
    assert [text for text in texts if text not in page] == []


def test_json_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    path = "recipes/tiny/dapo/qwen2.5-32b.toml"
    fields = json.loads(print_page(capsys, path, "--json"))
    plan = make_plan(load_recipe(ROOT / path), MACHINE)
    assert plan.learner is not None
    assert fields["learner"]["peak"] == plan.learner.peak
    assert fields["in_flight"] == {"groups": 64, "responses": 512}
    assert fields["tokens_per_step"] == 128 * 48
    assert all(fields[part]["fits"] is True for part in ("host", "learner", "rollout"))
    assert (fields["warnings"], fields["seconds_by_arithmetic"]) == ([], None)  # in float32
    path = "recipes/papo/qwen2.5-7b.toml"
    step = json.loads(print_page(capsys, path, "--json"))["seconds_by_arithmetic"]["total"]
    low, high = step["range"]
    assert low == pytest.approx(0.7 * step["seconds"])
    assert high == pytest.approx(1.3 * step["seconds"])


def test_the_exit_status_says_whether_the_job_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["recipes/demo.toml"]) == 0
    assert command.main(["recipes/papo/qwen2.5-7b.toml"]) == BAD_INPUT
    output = capsys.readouterr().out
    assert output.index("WEIR_MODEL_ROOTS") < output.rindex("max_context")


def test_a_measured_speed_replaces_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    page = print_page(capsys, "recipes/papo/qwen2.5-7b.toml", "--flops-used", "0.31")
    assert "GPUs at 31% of 989 TFLOP/s" in page
    assert "its speed was measured" in page


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["no-such-file.toml"], "weir: no-such-file.toml: "),
        (["README.md"], "weir: README.md: "),
        (["recipes/demo.toml", "--gpus", "learner=0"], "weir: --gpus: "),
        *((["recipes/demo.toml", "--gpu-memory", gib], gib) for gib in ("inf", "0", "nan")),
        *((["recipes/demo.toml", "--flops-used", share], share) for share in ("31", "0", "all")),
    ],
)
def test_bad_input_is_named(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(command.main(arguments))
    assert problem in capsys.readouterr().err


def test_a_plan_loads_no_engine() -> None:
    program = (
        "import sys; from services.learner import plan; "
        "plan.main(['recipes/demo.toml', '--json']); "
        "sys.exit(sorted({'vllm', 'redis'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
