"""``weir fork``: a job that starts from what another has made."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from services.gateway.cli.main import main
from tests.contract.gateway.command import know, start_weir
from tests.contract.gateway.stack import TASKS, Stack, a_job, take_up
from tests.contract.gateway.test_models import a_checkpoint
from tests.contract.gateway.test_weir_command import (
    RECIPE,
    learn,
    newest_id,
    wait_for_another_job,
)

pytestmark = pytest.mark.redis


@pytest.fixture
def here(tmp_path: Path, stack: Stack) -> Path:
    """A folder with a known stack, and a recipe of its own."""
    know(tmp_path, stack.url)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "train.jsonl").write_text(TASKS)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "step", "name"),
    [((), 4, "tiny"), (("recipe.toml", "--step", "2"), 2, "by hand")],
)
def test_a_job_goes_on_from_a_checkpoint_of_another_by_its_recipe_or_a_new_one(
    stack: Stack, http: httpx.Client, here: Path, words: tuple[str, ...], step: int, name: str
) -> None:
    job = a_job(http)
    for kept in (2, 4):
        a_checkpoint(stack, job["id"], kept)
    take_up(stack, job["id"], state="failed", error="the disk is gone")
    before = newest_id(http)
    process = start_weir(here, "fork", job["id"], *words)
    forked = wait_for_another_job(http, before)
    learn(stack, forked["id"], steps=1, state="succeeded", result={"model": "/final"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert forked["model"] == f"ftckpt-{job['id']}-{step}"
    assert forked["weir"]["recipe"]["name"] == name
    if not words:
        assert forked["training_file"] == job["training_file"]
        recipes = [each["weir"]["recipe"] | {"model": None} for each in (forked, job)]
        assert recipes[0] == recipes[1]


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(
    stack: Stack,
    http: httpx.Client,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.delenv("WEIR_HOME", raising=False)
    job_id = a_job(http)["id"]
    assert main(["fork", job_id]) == 2
    assert capsys.readouterr().err.endswith("the steps of those it has kept: none\n")
    a_checkpoint(stack, job_id, 4)
    assert main(["fork", job_id, "--step", "3"]) == 2
    assert capsys.readouterr().err.endswith("the steps of those it has kept: 4\n")
    assert newest_id(http) == job_id
