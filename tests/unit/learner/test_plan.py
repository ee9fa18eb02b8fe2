"""The plan of a recipe: what it finds, what it warns of, what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Recipe, load_recipe, parse_recipe

from services.learner import plan as planning
from services.learner.footprint import GIB
from services.learner.plan import Machine, Plan, PlanError, machine_of, make_plan, redis_size
from services.learner.plan_view import defaults_of, resolved
from services.learner.plan_warnings import warnings
from tests.architecture.project import ROOT
from tests.builders import a_recipe

MACHINE = Machine(
    learner_gpus=1,
    rollout_gpus=1,
    gpus_per_engine=1,
    gpu_bytes=80 * GIB,
    engine_share=0.9,
    engine_sequences=256,
    redis_bytes=GIB,
    model_roots=(ROOT,),
    model_hub=False,
)
SEVEN = "Qwen/Qwen2.5-7B"
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("WEIR_LEARNER_RANKS", "WEIR_ROLLOUTS", "WEIR_ROLLOUT_GPUS", "WEIR_MODEL_HUB"):
        monkeypatch.delenv(name, raising=False)


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
    assert plan.models[0].folder == Path("examples/arithmetic/base-model")
    assert plan.learner is not None
    assert plan.learner.peak < 3 * GIB
    assert plan.rollout is not None
    assert plan.rollout.responses_held == 256


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    recipe = demo(model={"path": SEVEN}, tasks={"train": str(tmp_path / "no.jsonl")})
    assert about(recipe, SEVEN, "WEIR_MODEL_HUB=on")
    assert about(recipe, "tasks.train", "no.jsonl", "no such file")
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


def test_a_model_that_the_hub_has_given_before_is_found(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--some--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    config = ROOT / "examples/arithmetic/base-model/config.json"
    (snapshot / "config.json").write_bytes(config.read_bytes())
    plan = make_plan(demo(model={"path": "some/model"}), MACHINE)
    assert plan.models[0].folder == snapshot
    assert plan.shapes[0] is not None
    assert plan.shapes[0].parameters == 604_288


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
        pytest.param(1, {"zero_stage": 3}, "Take 2 GPUs", id="more GPUs"),
    ],
)
def test_a_learner_that_does_not_fit_names_what_makes_it_fit(
    num_gpus: int, settings: dict[str, int], advice: str
) -> None:
    model = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}
    training = {"recompute_activations": num_gpus == 1}
    recipe = demo(model=model, training=training, optimizer=settings)
    machine = replace(MACHINE, learner_gpus=num_gpus)
    (text,) = about(recipe, "the learner does not fit", machine=machine)
    assert advice in text


def test_following_the_advice_for_the_learner_makes_it_fit() -> None:
    model = {"path": SEVEN, "dtype": "bfloat16", "max_context": 10240}
    machine = replace(MACHINE, learner_gpus=4)
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
    assert about(demo(model=model), "holds 1 at once", "WEIR_ROLLOUT_GPUS")
    split = replace(MACHINE, gpus_per_engine=4, rollout_gpus=4)
    assert not about(demo(model=model), "WEIR_ROLLOUT_GPUS", machine=split)


def test_engines_share_the_responses() -> None:
    recipe = demo(training={"max_staleness": 0})
    for num_engines, expected in ((1, 128), (4, 32)):
        plan = make_plan(recipe, replace(MACHINE, rollout_gpus=num_engines))
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


def options(**given: Any) -> Namespace:
    return Namespace(**{"learner_gpus": None, "rollout_gpus": None, "gpu_memory": 80.0, **given})


def test_the_machine_is_as_deployed_unless_an_option_says_otherwise() -> None:
    environment = {
        "WEIR_LEARNER_RANKS": "2",
        "WEIR_ROLLOUTS": "3",
        "WEIR_ROLLOUT_GPUS": "2",
        "WEIR_REDIS_MAXMEMORY": "4gb",
    }
    machine = machine_of(options(), environment)
    assert (machine.learner_gpus, machine.rollout_gpus, machine.num_engines) == (2, 6, 3)
    assert machine.redis_bytes == 4 * GIB
    machine = machine_of(options(learner_gpus=8, rollout_gpus=4, gpu_memory=141), environment)
    assert (machine.learner_gpus, machine.num_engines) == (8, 2)
    assert machine.gpu_bytes == 141 * GIB


@pytest.mark.parametrize(
    ("environment", "given", "complaint"),
    [
        ({"WEIR_LEARNER_RANKS": "two"}, {}, r"WEIR_LEARNER_RANKS='two': give a number"),
        ({"WEIR_ROLLOUTS": "0"}, {}, r"WEIR_ROLLOUTS='0': must be above 0"),
        ({"WEIR_REDIS_MAXMEMORY": "much"}, {}, r"WEIR_REDIS_MAXMEMORY='much'"),
        ({"WEIR_ROLLOUT_GPUS": "2"}, {"rollout_gpus": 3}, r"--rollout-gpus 3: not a multiple"),
    ],
)
def test_a_wrong_variable_is_named(
    environment: dict[str, str], given: dict[str, int], complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        machine_of(options(**given), environment)


@pytest.mark.parametrize(("text", "size"), [("1gb", GIB), ("2G", 2 * 10**9), ("512", 512)])
def test_sizes_are_written_as_redis_writes_them(text: str, size: int) -> None:
    assert redis_size(text) == size


def test_the_page_shows_the_recipe_the_files_and_the_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert planning.main(["recipes/demo.toml"]) == 0
    page = capsys.readouterr().out
    for words in (
        "temperature = 1.3",
        "found: 4000 tasks",
        "604,288 x 4 bytes",
        "keys and values",
        "staleness",
        "versions max(0, s - max_staleness 1) to s",
        "no warnings",
    ):
        assert words in page


def test_json_holds_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert planning.main(["recipes/tiny/dapo/qwen2.5-32b.toml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    plan = make_plan(load_recipe(ROOT / "recipes/tiny/dapo/qwen2.5-32b.toml"), MACHINE)
    assert isinstance(plan, Plan)
    assert plan.learner is not None
    assert data["learner"]["peak"] == plan.learner.peak
    assert data["in_flight"] == {"groups": 64, "responses": 512}
    assert data["tokens_per_step"] == 128 * 48
    assert data["staleness"] == {"min": 0, "max": 0}
    assert data["redis"]["bytes"] == (512 + 512) * 96 * 16
    assert data["recipe"]["training"]["dynamic_sampling"] is True
    assert data["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such-file.toml"], "no-such-file.toml: no such file"),
        (["README.md"], "README.md: not valid TOML"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_bad_input(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planning.main(arguments) == 2
    assert complaint in capsys.readouterr().err


def test_a_number_of_gpus_that_is_none_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        planning.main(["recipes/demo.toml", "--learner-gpus", "0"])
    assert "--learner-gpus: 0 is not above 0" in capsys.readouterr().err


def test_a_plan_starts_no_engine_and_loads_none() -> None:
    program = (
        "import sys; from services.learner import plan; "
        "plan.main(['recipes/demo.toml', '--json']); "
        "heavy = {'torch', 'deepspeed', 'vllm', 'transformers', 'redis'}; "
        "sys.exit(sorted(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
