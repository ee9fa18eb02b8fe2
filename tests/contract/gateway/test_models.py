"""Models over REST: what a job may start from, and what jobs have made, each usable as `model`."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import openai
import pytest
from protocol.messages import JobRecord

from tests.contract.gateway.stack import (
    JOBS,
    RECIPE,
    Stack,
    a_body,
    a_checkpoint,
    a_job,
    a_model,
    assert_refused,
    take_up,
    upload,
)

pytestmark = pytest.mark.redis
ABSENT = "ftjob-" + 24 * "0"


def a_trained_job(stack: Stack, http: httpx.Client) -> tuple[str, Path]:
    """A job that has succeeded, and the folder of its model."""
    job_id = a_job(http)["id"]
    folder = a_model(stack.data_dir / "jobs" / job_id / "model")
    take_up(stack, job_id, state="succeeded", result={"model": str(folder)})
    return job_id, folder


def record_of(stack: Stack, job_id: str) -> JobRecord:
    record = stack.exchange(lambda exchange: exchange.job(job_id))
    assert record is not None
    return record


# ---------------------------------------------------------------------- what there is


def test_the_openai_sdk_lists_models_and_each_is_retrieved_and_can_be_trained(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id, _ = a_trained_job(stack, http)
    a_checkpoint(stack, job_id, 2)
    listed = {model.id: model for model in sdk.models.list()}
    bases, made = {"tiny", "chat", "examples/arithmetic/base-model"}, {job_id, f"ftckpt-{job_id}-2"}
    assert listed.keys() >= bases | made
    assert not listed.keys() & {"pickled", "no-config", "escape", "leak"}
    assert {listed[name].owned_by for name in bases} == {"system"}
    assert {listed[name].owned_by for name in made} == {"weir"}
    file_id = upload(http).json()["id"]
    for name in bases | made:
        assert sdk.models.retrieve(name) == listed[name]
        job = sdk.fine_tuning.jobs.create(
            model=name, training_file=file_id, extra_body={"recipe": RECIPE}
        )
        assert job.model == name


@pytest.mark.parametrize(
    "name", ["absent", "leak", "pickled", "/etc", ABSENT, f"ftckpt-{ABSENT}-1"]
)
def test_a_model_that_no_job_can_start_from_is_not_there(http: httpx.Client, name: str) -> None:
    assert_refused(http.get(f"/v1/models/{name}"), 404, "id")
    assert_refused(http.delete(f"/v1/models/{name}"), 404, "id")


# ---------------------------------------------------------------------- starting from another job


def test_a_job_that_starts_from_a_checkpoint_keeps_it_when_the_other_job_does_not(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running", step=4)
    checkpoint = a_checkpoint(stack, job_id, 4)
    (kept,) = sdk.fine_tuning.jobs.checkpoints.list(job_id)
    fork = a_job(http, model=kept.fine_tuned_model_checkpoint)
    own = Path(record_of(stack, fork["id"]).recipe.model.path)
    assert own.is_relative_to(stack.data_dir / "jobs" / fork["id"])
    original = checkpoint / "model/model.safetensors"
    assert (own / "model.safetensors").samefile(original), "it takes no room of its own"
    shutil.rmtree(checkpoint)
    assert (own / "model.safetensors").read_text() == "weights of step 4"
    assert (own / "config.json").is_file()
    assert fork["model"] == kept.id


@pytest.mark.parametrize(
    ("makes", "reason"),
    [
        ((), "no checkpoint"),
        ((2, 4), "ftckpt-{job}-4 and ftckpt-{job}-2"),
    ],
)
def test_a_job_without_a_model_is_refused_with_the_checkpoints_that_it_has(
    stack: Stack, http: httpx.Client, makes: tuple[int, ...], reason: str
) -> None:
    job_id = a_job(http)["id"]
    for step in makes:
        a_checkpoint(stack, job_id, step)
    for name in (job_id, f"ftckpt-{job_id}-3"):
        reply = http.post(JOBS, json=a_body(http, model=name))
        assert_refused(reply, 400, "model")
        assert reason.format(job=job_id) in reply.json()["detail"]


# ---------------------------------------------------------------------- checkpoints


def test_the_openai_sdk_pages_checkpoints_newest_first_with_what_their_steps_told(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = a_job(http)["id"]
    for step in (2, 4, 10):
        a_checkpoint(stack, job_id, step, loss=step / 2, reward=0.25, grad_norm=None)
    (stack.data_dir / "jobs" / job_id / "checkpoints/.unfinished-1-step-000012").mkdir()
    assert not http.get(f"{JOBS}/{job_id}/checkpoints?limit=3").json()["has_more"]
    kept = list(sdk.fine_tuning.jobs.checkpoints.list(job_id, limit=1))
    assert [checkpoint.step_number for checkpoint in kept] == [10, 4, 2]
    metrics = kept[0].metrics
    assert (metrics.step, metrics.train_loss, metrics.valid_loss) == (10, 5.0, None)
    assert metrics.to_dict() == {"step": 10, "train_loss": 5.0, "reward": 0.25, "grad_norm": None}
    assert {checkpoint.fine_tuning_job_id for checkpoint in kept} == {job_id}


# ---------------------------------------------------------------------- deleting


def test_a_trained_model_is_deleted_and_jobs_that_start_from_it_keep_theirs(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id, folder = a_trained_job(stack, http)
    fork = a_job(http, model=job_id)["id"]
    deleted = sdk.models.delete(job_id)
    assert (deleted.id, deleted.object, deleted.deleted) == (job_id, "model", True)
    assert list(folder.parent.iterdir()) == []
    assert job_id not in {model.id for model in sdk.models.list()}
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve(job_id)
    with pytest.raises(openai.NotFoundError):
        sdk.models.delete(job_id)
    assert_refused(http.get(f"{JOBS}/{job_id}/model"), 404, "id")
    assert_refused(http.post(JOBS, json=a_body(http, model=job_id)), 400, "model")
    own = Path(record_of(stack, fork).recipe.model.path)
    assert (own / "model.safetensors").read_text() == "weights"


def test_the_model_of_a_forgotten_job_is_fetched_and_the_job_deleted(
    stack: Stack, http: httpx.Client
) -> None:
    job_id, folder = a_trained_job(stack, http)
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    assert http.get(f"/v1/models/{job_id}").status_code == 200
    names = [file["name"] for file in http.get(f"{JOBS}/{job_id}/model").json()["data"]]
    assert names == ["config.json", "model.safetensors"]
    assert http.get(f"{JOBS}/{job_id}/model/model.safetensors").text == "weights"
    assert http.delete(f"{JOBS}/{job_id}").json()["deleted"]
    assert not folder.parent.exists()
    assert_refused(http.get(f"{JOBS}/{job_id}/model"), 404, "id")
    assert_refused(http.delete(f"{JOBS}/{job_id}"), 404, "id")


def test_what_no_ended_job_has_trained_is_not_deleted(stack: Stack, http: httpx.Client) -> None:
    running = a_job(http)["id"]
    a_model(stack.data_dir / "jobs" / running / "model")  # a moment before it has succeeded
    a_checkpoint(stack, running, 2)
    take_up(stack, running, state="running")
    assert_refused(http.delete(f"/v1/models/{running}"), 409, "id")
    for name in ("tiny", "examples/arithmetic/base-model", f"ftckpt-{running}-2"):
        assert_refused(http.delete(f"/v1/models/{name}"), 403, "id")
        assert http.get(f"/v1/models/{name}").status_code == 200
    assert http.get(f"/v1/models/{running}").status_code == 200
