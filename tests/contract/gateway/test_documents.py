"""The code blocks of the documents run as they stand."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import load_recipe
from protocol.rewards import Reward
from pydantic import BaseModel

from deploy.launches import python_path
from services.grader.verifiers import VERIFIERS
from services.learner.algorithms import advantages
from services.learner.sft.recipe import SftRecipe
from tests.architecture.project import ROOT
from tests.contract.gateway.stack import Stack, a_learner, know

TUTORIAL = "docs/tutorial.md"
GPU_BOX = "docs/how-to/gpu-box.md"
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# How the blocks begin that need a GPU, docker, a cluster or minutes; the others run in a test.
ELSEWHERE = (
    "make demo",
    ". .venv/bin/activate",
    "make secrets",
    "export WEIR_REDIS_URL",
    "ray job submit",
    "python -m services.grader",
    "WEIR_JUDGE_URL",
    "weir grade --cal",
)


def run_here(document: str, *languages: str) -> list[tuple[str, str]]:
    """The language and the text of the blocks of a document that run in a test, in their order."""
    return [
        (language, text)
        for language, text in BLOCK.findall((ROOT / document).read_text())
        if language in languages and not text.lstrip().startswith(ELSEWHERE)
    ]


@pytest.mark.skipif(not shutil.which("jq"), reason="the documents use jq")
@pytest.mark.redis
@pytest.mark.parametrize("document", ["docs/reference/rest.md", "weir/README.md"])
def test_jobs_by_hand_run_as_they_stand(stack: Stack, tmp_path: Path, document: str) -> None:
    know(tmp_path, stack.url)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    examples = tmp_path / "examples/arithmetic"
    examples.mkdir(parents=True)
    (examples / "base-model").symlink_to(stack.models / "examples/arithmetic/base-model")
    for path in (ROOT / "examples/arithmetic").glob("*.jsonl"):
        (examples / path.name).symlink_to(path)
    (tmp_path / ".curlrc").write_text("fail-with-body\nshow-error\n")
    with a_learner(stack) as learned:
        done = run(document, tmp_path, CURL_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(learned) == 1, done.stdout
    assert done.stdout.count("m12") == 1


def test_a_division_of_gpus_makes_a_compose_file(tmp_path: Path) -> None:
    (command,) = (text for _, text in run_here(GPU_BOX, "bash") if "weir compose" in text)
    done = run_shell(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "device_ids" in (tmp_path / "docker-compose.override.yml").read_text()


def test_the_command_of_the_reference_makes_a_key(tmp_path: Path) -> None:
    blocks = run_here("docs/reference/rest.md", "bash")
    (command,) = (text for _, text in blocks if "sha256" in text)
    done = run_shell(command, tmp_path)
    assert done.returncode == 0, done.stderr
    (entry,) = (tmp_path / "api_keys").read_text().split()
    digest = hashlib.sha256(done.stdout.strip().encode()).hexdigest()
    assert entry == f"alice:read:sha256:{digest}"


def test_the_files_of_the_tutorial_do_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "carries").mkdir()
    files = ("make_tasks.py", "rewards.py", "recipe.toml")
    for name, (_, text) in zip(
        files,
        run_here(TUTORIAL, "python", "toml"),
        strict=True,
    ):
        (tmp_path / "carries" / name).write_text(text)
    (_, command), *_ = run_here(TUTORIAL, "bash")
    (_, output), *_ = run_here(TUTORIAL, "")
    done = run_shell(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
    monkeypatch.setitem(VERIFIERS, "carries.true_steps", None)  # it goes with the test
    rewards: dict[str, Any] = {}
    exec((tmp_path / "carries/rewards.py").read_text(), rewards)
    right = rewards["true_steps"](None, "58+7=65;65-6=61;59+4=63;", None, None)
    assert asyncio.run(right).value == 2 / 3
    reward = load_recipe(tmp_path / "carries/recipe.toml").reward
    assert [check.verifier for check in reward.process] == ["carries.true_steps"]


def test_responses_get_the_verdicts_that_the_document_shows(tmp_path: Path) -> None:
    command, responses, verdicts = (text for _, text in run_here("docs/reference/rewards.md", ""))
    (tmp_path / "responses.jsonl").write_text(responses)
    done = run_shell(command, tmp_path)
    assert done.returncode == 0, done.stderr

    def drop_times(text: str) -> list[dict[str, Any]]:
        return [json.loads(line) | {"ms": None} for line in text.splitlines()]

    assert drop_times((tmp_path / "verdicts.jsonl").read_text()) == drop_times(verdicts)


def parse_reward(tables: dict[str, Any]) -> Reward:
    return Reward.model_validate(tables["reward"])


@pytest.mark.parametrize(
    ("document", "read"),
    [
        ("docs/how-to/data.md", [SftRecipe.model_validate]),
        ("docs/reference/rewards.md", [parse_reward]),
        ("docs/how-to/judge.md", [parse_reward, parse_reward]),
    ],
)
def test_tables_of_recipes_and_rubrics_can_be_read(
    document: str, read: list[Callable[[dict[str, Any]], BaseModel]]
) -> None:
    for (_, text), model in zip(
        run_here(document, "toml"),
        read,
        strict=True,
    ):
        assert model(tomllib.loads(text)).model_fields_set


def test_the_advantage_that_contributors_read_can_be_computed() -> None:
    ((_, text),) = run_here("CONTRIBUTING.md", "python")
    names = dict(vars(advantages))
    exec(textwrap.dedent(text), names)
    assert callable(names["centered"])


def run(document: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the commands of a document in one shell."""
    script = [
        f"python <<'END'\n{text}END\n" if language == "python" else text
        for language, text in run_here(document, "bash", "python")
    ]
    return run_shell("".join(script), folder, **variables)


def run_shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """With the ``weir`` and the ``python`` of these tests."""
    programs = folder / "programs"
    programs.mkdir()
    for name, options in (("weir", "-m weir"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if "WEIR" not in name}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = python_path({})
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
