"""The plan of a recipe: what it finds, what it warns of, what it prints."""

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
from protocol.recipe import Recipe, load_recipe, parse_recipe

from deploy.placement import divide, parse
from services.learner import plan as command
from services.learner.planning.footprint import GIB
from services.learner.planning.machine import Machine
from services.learner.planning.plan import make_plan
from services.learner.planning.view import defaults_of, resolved, show
from services.learner.planning.warnings import warnings
from tests.architecture.project import ROOT
from tests.builders import a_recipe

MACHINE = Machine(
    placement=divide(2),
    how="for the test",
    gpu_bytes=80 * GIB,
    engine_share=0.9,
    engine_sequences=256,
    redis_bytes=GIB,
    model_roots=(ROOT,),
    model_hub=False,
)
BASE_MODEL = ROOT / "examples/arithmetic/base-model"
SEVEN = "Qwen/Qwen2.5-7B"
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


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


def test_the_demo_is_all_there_and_warns_of_nothing() -> None:
    plan = make_plan(demo(), MACHINE)
    assert warnings(plan) == []
    assert [tasks.num_tasks for tasks in plan.tasks] == [4000, 512]
    assert plan.models[0].folder == BASE_MODEL
    assert plan.learner is not None
    assert plan.learner.peak < 3 * GIB
    assert plan.rollout is not None
    assert plan.rollout.responses_held == 256


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    recipe = demo(model={"path": SEVEN}, tasks={"train": str(tmp_path / "no.jsonl")})
    assert about(recipe, SEVEN, "WEIR_MODEL_HUB=on")
    assert about(recipe, "tasks.train", "no.jsonl", "No such file")
    folder = demo(tasks={"train": str(tmp_path)})
    assert about(folder, "tasks.train", "Is a directory")
    plan = make_plan(recipe, replace(MACHINE, model_hub=True))
    assert not any("WEIR_MODEL_HUB" in text for text in warnings(plan))
    assert plan.models[0].shape_source == "from the built-in table"
    assert plan.models[0].download_bytes == 2 * 7_615_616_512


def test_a_broken_task_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"id": "a"}\n')
    recipe = demo(tasks={"train": str(tmp_path / "train.jsonl")})
    assert about(recipe, "tasks.train", "line 1")


def test_an_unknown_model_has_no_footprint_and_says_why() -> None:
    plan = make_plan(demo(model={"path": "someone/unheard-of"}), MACHINE)
    assert plan.learner is plan.rollout is None
    assert any("someone/unheard-of" in text and SEVEN in text for text in warnings(plan))


def a_model(folder: Path, *, weights: bool = True) -> Path:
    """The demo's model in another folder, whole or without its weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes((BASE_MODEL / "config.json").read_bytes())
    if weights:
        (folder / "model.safetensors").symlink_to(BASE_MODEL / "model.safetensors")
    return folder


def test_a_model_that_the_hub_has_given_before_is_found_where_the_hub_is_allowed(
    tmp_path: Path,
) -> None:
    snapshot = a_model(tmp_path / "hub/models--some--model/snapshots/abc")
    recipe = demo(model={"path": "some/model"})
    allowed = make_plan(recipe, replace(MACHINE, model_hub=True))
    assert allowed.models[0].folder == snapshot
    assert allowed.shapes[0] is not None
    assert allowed.shapes[0].parameters == 604_288
    assert make_plan(recipe, MACHINE).models[0].folder is None
    assert about(recipe, "'some/model'", "WEIR_MODEL_HUB=on")


def test_a_download_that_has_no_weights_yet_is_not_found(tmp_path: Path) -> None:
    a_model(tmp_path / "hub/models--some--model/snapshots/abc", weights=False)
    plan = make_plan(demo(model={"path": "some/model"}), replace(MACHINE, model_hub=True))
    assert plan.models[0].folder is None


@pytest.mark.parametrize("hub", [False, True])
def test_a_model_without_safetensors_is_refused_as_the_job_refuses_it(
    tmp_path: Path, hub: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_model(tmp_path / "model", weights=False)
    recipe, machine = demo(model={"path": str(folder)}), replace(MACHINE, model_hub=hub)
    machine = replace(machine, model_roots=(tmp_path,))
    (text,) = about(recipe, "would refuse", machine=machine)
    assert f"model.path: {folder} holds no *.safetensors" in text
    show(make_plan(recipe, machine))
    page = capsys.readouterr().out
    assert "refused" in page
    assert "found: /" not in page


def test_a_model_outside_the_allowed_roots_is_not_found(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "model")
    recipe = demo(model={"path": str(folder)})
    assert about(recipe, str(folder), "WEIR_MODEL_ROOTS", str(ROOT))
    assert not about(recipe, machine=replace(MACHINE, model_roots=(ROOT, tmp_path)))


def test_the_critics_model_is_named_by_its_field(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "critic", weights=False)
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml").model_dump()
    recipe["critic"]["path"] = str(folder)
    machine = replace(MACHINE, model_roots=(ROOT, tmp_path))
    assert about(parse_recipe(recipe), "of the critic", "critic.path:", machine=machine)


@pytest.mark.parametrize(
    "path", ["a" * 5000, "nul\0", "../" * 40 + "etc"], ids=["long", "nul", "above the roots"]
)
def test_a_model_path_that_no_system_can_hold_is_not_found(path: str) -> None:
    assert make_plan(demo(model={"path": path}), MACHINE).models[0].folder is None


def test_a_damaged_config_is_named_with_its_field(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    machine = replace(MACHINE, model_roots=(tmp_path,))
    recipe = demo(model={"path": str(folder)})
    assert about(recipe, "config.json is damaged: field hidden_size is missing", machine=machine)
    (folder / "config.json").write_text("{")
    assert about(recipe, "config.json is damaged: not valid JSON", machine=machine)


def test_lambda_above_the_order_safe_bound() -> None:
    large = demo(algorithm={"lambda_process": 1.1})
    assert about(large, "algorithm.lambda_process = 1.1", "1.058")
    assert about(demo(rollout={"group_size": 16}), "0.693")
    assert not about(demo(algorithm={"advantage": "grpo"}, rollout={"group_size": 16}), "lambda")


def test_stale_samples_that_nothing_corrects() -> None:
    stale = {"old_logprobs": "recompute"}
    assert about(demo(algorithm=stale), "training.max_staleness = 1", "token_tis")
    assert not about(demo(algorithm=stale | {"correction": "token_tis"}), "staleness")
    assert not about(demo(algorithm=stale, training={"max_staleness": 0}), "staleness")
    assert not about(demo(), "staleness")


def test_a_context_longer_than_the_model_knows() -> None:
    assert about(demo(model={"max_context": 257}), "model.max_context = 257", "256 positions")
    assert not about(demo(model={"max_context": 256}), "positions")


def test_a_job_too_large_for_redis_names_the_least_maxmemory() -> None:
    small = replace(MACHINE, redis_bytes=10**6)
    plan = make_plan(demo(), small)
    least = 2 * plan.redis_bytes
    (text,) = about(demo(), "WEIR_REDIS_MAXMEMORY", f"{least:,}", machine=small)
    assert not about(demo(), "WEIR_REDIS", machine=replace(MACHINE, redis_bytes=least))
    assert "refused" in text


@pytest.mark.parametrize(
    ("num_gpus", "settings", "advice"),
    [
        pytest.param(4, {"zero_stage": 3}, "Set training.recompute_activations = true", id="set"),
        pytest.param(4, {"zero_stage": 0}, "Set optimizer.zero_stage = 3, training.", id="two"),
        pytest.param(1, {"zero_stage": 3}, "Give the learner 4 GPUs (learner=", id="more"),
    ],
)
def test_a_learner_that_does_not_fit_names_what_makes_it_fit(
    num_gpus: int, settings: dict[str, int], advice: str
) -> None:
    model = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}
    training = {"recompute_activations": num_gpus == 1}
    recipe = demo(model=model, training=training, optimizer=settings)
    machine = replace(MACHINE, placement=divide(2 * num_gpus))
    (text,) = about(recipe, "the learner does not fit", machine=machine)
    assert advice in text


def test_following_the_advice_for_the_learner_makes_it_fit() -> None:
    model = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}
    machine = replace(MACHINE, placement=divide(8))
    tight = demo(model=model, optimizer={"zero_stage": 0})
    advised = demo(
        model=model,
        optimizer={"zero_stage": 3},
        training={"recompute_activations": True},
    )
    assert about(tight, "the learner does not fit", machine=machine)
    assert not about(advised, "the learner does not fit", machine=machine)


def test_an_engine_too_small_for_a_group_names_the_gpus_to_split_over() -> None:
    model = {"path": "Qwen/Qwen2.5-32B", "dtype": "bfloat16", "max_context": 22528}
    (text,) = about(demo(model=model), "holds 1 at once")
    assert "in WEIR_GPUS split it over more GPUs than rollout=1" in text
    split = replace(MACHINE, placement=parse("learner=0-3 rollout=4-7"))
    assert not about(demo(model=model), "holds", machine=split)
    shared = replace(MACHINE, placement=parse("learner=0 rollout=0@0.8"))
    assert about(demo(model=model), "give it a larger share than rollout=0@0.8", machine=shared)


@pytest.mark.parametrize(
    ("path", "wrong", "reason"),
    [
        (SEVEN, "rollout=4-6", "28 attention heads cannot be split evenly over 3 GPUs"),
        ("Qwen/Qwen2.5-3B", "rollout=4-6", "write rollout= with 1, 2, 4 or 8 GPUs"),
        (SEVEN, "rollout=4-10", "4 key-value heads can neither be split evenly over 7 GPUs"),
    ],
)
def test_a_split_that_the_heads_do_not_allow_names_the_engine_and_the_sizes_that_work(
    path: str, wrong: str, reason: str
) -> None:
    recipe = demo(
        model={"path": path, "dtype": "bfloat16"},
        optimizer={"zero_stage": 3},
        training={"recompute_activations": True},
    )
    machine = replace(MACHINE, placement=parse(f"learner=0-3 {wrong}"))
    assert about(recipe, f"would refuse the model '{path}' on {wrong}: ", reason, machine=machine)
    plan = make_plan(recipe, machine)
    assert (plan.works, plan.seconds) == (False, None)
    split = replace(MACHINE, placement=parse("learner=0-3 rollout=4-7"))
    assert not about(recipe, "would refuse", machine=split)
    assert make_plan(recipe, split).works


def test_a_cache_of_set_size_is_what_an_engine_has_for_keys_and_values() -> None:
    model = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}
    set_aside = replace(MACHINE, engine_cache_bytes=4 * GIB, engine_share=0.1)
    plan = make_plan(demo(model=model), set_aside)
    assert plan.rollout is not None
    # 4 GiB / (10,240 tokens x 57,344 bytes) = 7.3
    assert (plan.rollout.room, plan.rollout.responses_held) == (4 * GIB, 7)
    (text,) = about(demo(model=model), "holds 7 at once", machine=set_aside)
    assert "raise WEIR_ROLLOUT_KV_CACHE_MIB" in text


def test_a_cache_that_does_not_fit_beside_the_weights_is_named() -> None:
    large = replace(MACHINE, engine_cache_bytes=70 * GIB)  # beside 14.2 GiB of weights, of 80
    recipe = demo(model={"path": SEVEN, "dtype": "bfloat16"})
    assert about(recipe, "14.2 GiB", "70.0 GiB (WEIR_ROLLOUT_KV_CACHE_MIB)", machine=large)
    assert not about(recipe, "KV_CACHE", machine=replace(MACHINE, engine_cache_bytes=65 * GIB))


def test_engines_share_the_responses() -> None:
    recipe = demo(training={"max_staleness": 0})
    for num_engines, expected in ((1, 128), (4, 32)):
        plan = make_plan(recipe, replace(MACHINE, placement=divide(2 * num_engines)))
        assert plan.rollout is not None
        assert plan.rollout.responses_asked == expected


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_resolved_recipe_is_toml_that_means_the_same(path: Path) -> None:
    recipe = load_recipe(path)
    assert parse_recipe(tomllib.loads("\n".join(resolved(recipe)))) == recipe


def test_what_the_file_left_out_is_marked() -> None:
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml")
    lines = list(resolved(recipe))
    assert "gamma = 1.0" in lines
    assert "ddof = 1  # default" in lines
    assert "# value_clip is not set  # default" in lines
    assert {"algorithm.ddof", "rollout.sampling.top_p"} < defaults_of(recipe)
    assert "critic.optimizer.learning_rate" not in defaults_of(recipe)
    assert "critic.optimizer.betas" in defaults_of(recipe)


def test_defaults_of_a_table_that_was_left_out_are_all_marked() -> None:
    given = a_recipe(algorithm={"advantage": "gae"}, critic={"pretrain_steps": 1})
    assert "critic.optimizer.learning_rate" in defaults_of(given)
    assert "optimizer.learning_rate" in defaults_of(given)


def test_the_page_shows_the_recipe_the_files_and_the_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["recipes/demo.toml"]) == 0
    page = capsys.readouterr().out
    for words in (
        "temperature = 1.3",
        "found: 4000 tasks",
        "604,288 x 4 bytes",
        "keys and values",
        "staleness",
        "versions max(0, s - max_staleness 1) to s",
        "Placement: learner=0 rollout=1 (this machine shows no GPU: a box of 2 is assumed",
        "no warnings",
    ):
        assert words in page


def test_the_page_says_who_has_which_gpu_and_what_fits_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "learner=0-3 rollout=4-6 rollout=7-8 rollout=9@0.5 judge=9@0.4 idle=10"
    assert command.main(["recipes/papo/qwen2.5-7b.toml", "--gpus", line]) == 0
    page = re.sub(" +", " ", capsys.readouterr().out)
    for words in (
        f"Placement: {line} (as --gpus says)",
        "learner GPU 0-3 4 ranks, each 47.5 GiB of 72.0 GiB: fits",
        "rollout GPU 4-6 does not work: its 28 attention heads cannot be split evenly over 3 GPUs",
        "rollout GPU 7-8 counted as the smallest engine, rollout=9@0.5",
        "rollout GPU 9@0.5 14.2 GiB of weights, 25.8 GiB for keys and values, of 40.0 GiB: fits",
        "judge GPU 9@0.4 its model is not part of the recipe",
        "idle GPU 10",
    ):
        assert words in page
    assert "Seconds of a step" not in page


def test_seconds_are_said_to_be_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["recipes/papo/qwen2.5-7b.toml", "--gpus", "learner=0-3 rollout=4,5 rollout=6,7"]
    assert command.main(arguments) == 0
    page = re.sub(r"\s+", " ", capsys.readouterr().out)
    plan = make_plan(
        load_recipe(ROOT / arguments[0]), replace(MACHINE, placement=parse(arguments[2]))
    )
    assert plan.seconds is not None
    assert "by arithmetic (H100 SXM; no GPU was measured)" in page
    assert f"a step {plan.seconds.total.seconds:,.1f} s one after the other" in page
    assert "assumed 40% of a GPU's FLOP/s" in page


def test_json_holds_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["recipes/tiny/dapo/qwen2.5-32b.toml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    plan = make_plan(load_recipe(ROOT / "recipes/tiny/dapo/qwen2.5-32b.toml"), MACHINE)
    assert plan.learner is not None
    assert data["learner"]["peak"] == plan.learner.peak
    assert data["in_flight"] == {"groups": 64, "responses": 512}
    assert data["tokens_per_step"] == 128 * 48
    assert data["staleness"] == {"min": 0, "max": 0}
    assert data["redis"]["bytes"] == (512 + 512) * 96 * 16
    assert data["recipe"]["training"]["dynamic_sampling"] is True
    assert data["warnings"] == []
    assert data["placement"]["line"] == "learner=0 rollout=1"
    assert "is assumed" in data["placement"]["how"]
    assert (data["learner"]["fits"], data["rollout"]["fits"]) == (True, True)
    assert data["seconds_by_arithmetic"] is None  # of a float32 model


def test_json_has_the_seconds_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["recipes/papo/qwen2.5-7b.toml", "--gpus", "8", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["seconds_by_arithmetic"]
    assert seconds["gpu"] == "H100 SXM"
    parts = {part["what"]: part["seconds"] for part in seconds["parts"]}
    assert set(parts) == {"sampling", "training", "publishing", "verifying", "loading"}
    assert seconds["total"]["seconds"] == pytest.approx(sum(parts.values()))


def test_a_wrong_line_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["recipes/demo.toml", "--gpus", "learner=0"]) == 2
    assert "weir: --gpus: WEIR_GPUS='learner=0': no GPU for the rollout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such-file.toml"], "no-such-file.toml: no such file"),
        (["README.md"], "README.md: not valid TOML"),
        (["recipes"], "recipes: cannot be read: Is a directory"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_bad_input(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--gpu-memory", "inf"),
        ("--gpu-memory", "1e300"),
        ("--gpu-memory", "nan"),
    ],
)
def test_an_impossible_machine_is_bad_input(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["recipes/demo.toml", option, text])
    assert f"{option}: {text} is not above 0 and at most 1,048,576" in capsys.readouterr().err


def test_a_plan_starts_no_engine_and_loads_none() -> None:
    program = (
        "import sys; from services.learner import plan; "
        "plan.main(['recipes/demo.toml', '--json']); "
        "heavy = {'torch', 'deepspeed', 'vllm', 'transformers', 'redis'}; "
        "sys.exit(sorted(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
