"""``weir fork``: a job that starts from what another has made."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from services.gateway.cli.main import main
from tests.contract.gateway.command import know
from tests.contract.gateway.learner import a_learner
from tests.contract.gateway.stack import JOBS, TASKS, Stack, a_job, take_up
from tests.contract.gateway.test_models import a_checkpoint
from tests.contract.gateway.test_weir_command import RECIPE, newest_id

pytestmark = pytest.mark.redis


@pytest.fixture
def here(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a known stack and a recipe of its own."""
    know(tmp_path, stack.url)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "train.jsonl").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    for name in ("WEIR_URL", "WEIR_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "step", "name"),
    [((), 4, "tiny"), (("recipe.toml", "--step", "2"), 2, "by hand")],
)
def test_a_job_goes_on_from_a_checkpoint_of_another_by_its_recipe_or_a_new_one(
    stack: Stack, http: httpx.Client, words: tuple[str, ...], step: int, name: str
) -> None:
    job = a_job(http)
    for kept in (2, 4):
        a_checkpoint(stack, job["id"], kept)
    take_up(stack, job["id"], state="failed", error="the disk is gone")
    with a_learner(stack) as learned:
        assert main(["fork", job["id"], *words]) == 0
    (forked_id,) = learned
    forked = http.get(f"{JOBS}/{forked_id}").json()
    assert forked["model"] == f"ftckpt-{job['id']}-{step}"
    assert forked["weir"]["recipe"]["name"] == name
    if not words:
        assert forked["training_file"] == job["training_file"]
        recipes = [each["weir"]["recipe"] | {"model": None} for each in (forked, job)]
        assert recipes[0] == recipes[1]


@pytest.mark.usefixtures("here")
def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(
    stack: Stack, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = a_job(http)["id"]
    assert main(["fork", job_id]) == 2
    assert capsys.readouterr().err.endswith("the steps of those it has kept: none\n")
    a_checkpoint(stack, job_id, 4)
    assert main(["fork", job_id, "--step", "3"]) == 2
    assert capsys.readouterr().err.endswith("the steps of those it has kept: 4\n")
    assert newest_id(http) == job_id


@pytest.mark.usefixtures("here")
def test_a_job_that_has_ended_is_deleted_and_one_that_has_not_is_left(
    stack: Stack, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = a_job(http)["id"]
    assert main(["delete", job_id]) == 2
    assert http.get(f"{JOBS}/{job_id}").status_code == 200
    take_up(stack, job_id, state="failed", error="the disk is gone")
    capsys.readouterr()
    assert main(["delete", job_id]) == 0
    assert capsys.readouterr().out == f"{job_id} is deleted\n"
    assert http.get(f"{JOBS}/{job_id}").status_code == 404
