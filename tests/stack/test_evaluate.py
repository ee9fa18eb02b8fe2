"""Jobs without training measure models side by side, and how often a model solves each task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.launches import python_path
from tests.stack.conftest import BASE_MODEL, TASKS, Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
SETTINGS = """
[model]
prompt_template = "{prompt}"
max_context = 96
[rollout.sampling]
max_tokens = 48
"""


def weir(stack: Stack, *arguments: str) -> str:
    environment = os.environ | {"WEIR_HOME": str(stack.home), "PYTHONPATH": python_path({})}
    command = [sys.executable, "-m", "weir", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tasks") / "sums.jsonl"
    file.write_text("".join(TASKS.read_text().splitlines(keepends=True)[:24]))
    return file


def test_a_base_model_and_two_checkpoints_are_compared_on_a_suite(
    stack: Stack, tasks: Path
) -> None:
    lora = {"dtype": "float32", "lora": {"rank": 2}}
    job = stack.submit(training={"steps": 4, "checkpoint_every": 2}, model=lora)
    assert stack.wait_for_end(job)["status"] == "succeeded"
    suite = tasks.with_name("suite.toml")
    source = f'[evaluation.others.sums]\nheld_out = "{tasks}"\nsamples = 4\n'
    suite.write_text(f"{SETTINGS}{source}")
    models = [BASE_MODEL, f"{job}@2", job]
    output = tasks.with_name("report.json")
    text = weir(stack, "evaluate", *models, "--suite", str(suite), "--output", str(output))
    assert "avg@k" in text
    report = json.loads(output.read_text())
    assert [row["model"] for row in report["results"]] == models
    for row in report["results"]:
        assert (row["name"], row["tasks"], row["samples"]) == ("sums", 24, 96)
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["accuracy"] <= row["pass@4"] <= 1
        assert not list((stack.job_folder(row["job"]) / "checkpoints").glob("step-*"))
        ended = stack.weir.job(row["job"])
        assert (ended["weir"]["steps"], ended["fine_tuned_model"]) == (0, None)
    for row in report["differences"]:
        assert (row["against"], row["tasks"], row["paired"]) == (BASE_MODEL, 24, True)
    assert [row["model"] for row in report["differences"]] == models[1:]


def test_a_profile_of_tasks_finds_its_job_again(stack: Stack, tasks: Path) -> None:
    recipe = tasks.with_name("settings.toml")
    recipe.write_text(SETTINGS)
    rated = tasks.with_name("rated.jsonl")
    options = ["--model", BASE_MODEL, "-k", "4", "--recipe", str(recipe), "--output", str(rated)]
    first = weir(stack, "data", "profile", str(tasks), *options)
    again = weir(stack, "data", "profile", str(tasks), *options)
    assert first.split(":")[0] == again.split(":")[0]
    assert "succeeded" in again.splitlines()[0]
    lines = [json.loads(line) for line in rated.read_text().splitlines()]
    rates = [line["metadata"]["pass_rate"] for line in lines]
    assert len(rates) == 24
    assert 0 < sum(rates) < 24
    assert "pass rate" in weir(stack, "data", "check", str(tasks))
