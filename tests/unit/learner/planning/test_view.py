"""What `weir plan` prints: the recipe with its defaults, tables, JSON, and errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest
from protocol.recipe import load_recipe, parse_recipe

from services.learner import plan as command
from services.learner.plan import as_json, duration, resolved
from services.learner.planning.plan import make_plan
from tests.architecture.project import ROOT
from tests.unit.learner.planning.test_plan import MACHINE

pytestmark = pytest.mark.usefixtures("in_the_repository")


def page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed, with one space where there are several."""
    assert command.main(arguments) == 0
    return re.sub(" +", " ", capsys.readouterr().out)


def test_the_resolved_recipe_is_toml_that_means_the_same() -> None:
    for path in (ROOT / "recipes").rglob("*.toml"):
        recipe = load_recipe(path)
        assert parse_recipe(tomllib.loads("\n".join(resolved(recipe)))) == recipe, path


def test_what_the_file_left_out_is_marked() -> None:
    recipe = load_recipe(ROOT / "recipes/tiny/vapo/qwen2.5-32b.toml")
    lines = ["gamma = 1.0", "ddof = 1  # default", "# value_clip is not set  # default"]
    assert set(lines) < set(resolved(recipe))
    defaults = set(as_json(make_plan(recipe, MACHINE))["defaults"])
    assert {"algorithm.ddof", "rollout.sampling.top_p", "critic.optimizer.betas"} < defaults
    assert "critic.optimizer.learning_rate" not in defaults


def test_the_page_shows_the_recipe_the_files_and_the_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page(capsys, "recipes/demo.toml", "--gpus", "8")
    for words in ("temperature = 1.3", "4000 tasks", "604,288 x 4 bytes", "\nno warnings"):
        assert words in text
    text = page(capsys, "recipes/demo.toml")
    assert "GPUs" not in text.partition("Placement: on CPUs")[2]
    assert "80" not in text.partition("Memory of a node")[2]
    text = page(capsys, "recipes/vapo/qwen2.5-32b.toml")  # about the machine that it names
    assert "Placement: learner=0-3 rollout=4-7 (" in text
    assert "critic: Adam's moments 238.3 GiB 31.99 B x 8 bytes" in text
    assert text.count("\n! ") > 1


def test_the_page_says_what_fits_and_how_long_the_run_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "learner=0-3 rollout=4-6 rollout=7-8 rollout=9@0.5 judge=9@0.4 idle=10"
    text = page(capsys, "recipes/papo/qwen2.5-7b.toml", "--gpus", line)
    assert f"\nPlacement: {line} (as --gpus says)" in text
    assert "\npeak 48.9 GiB" in text
    assert "\nfits 72.0 GiB are usable" in text
    assert "of the smallest engine, rollout=9@0.5\n" in text
    assert "\nfits 40.0 GiB are usable" in text
    assert "\ndoes not work rollout=4-6: " in text  # its heads cannot be split so
    assert "Time, by arithmetic" not in text
    text = page(capsys, "recipes/dapo/qwen2.5-32b.toml")
    assert "\nthe run 169 days (313 steps) x 46,744.5 s" in text


def test_durations_are_in_the_unit_that_a_person_would_take() -> None:
    told = [duration(seconds) for seconds in (36.94, 1880.0, 82_523.0, 259_200, 14_631_019.0)]
    assert told == ["36.9 s", "31 min", "23 h", "3.0 days", "169 days"]


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
        "heavy = {'torch', 'deepspeed', 'vllm', 'transformers', 'redis'}; "
        "sys.exit(sorted(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
