"""The job object of the API, and the ids of repeated submissions."""

from __future__ import annotations

import pytest
from openai.types.fine_tuning import FineTuningJob
from protocol.messages import JobRecord, JobState, Requested

from services.gateway.api.openai.job_object import job_object, job_status
from services.gateway.core.jobs.service import Repeat
from tests.builders import a_recipe


def a_record(state: JobState, requested: Requested = Requested.RUN) -> JobRecord:
    return JobRecord(
        id="ftjob-1", created_at=1.5, recipe=a_recipe(), state=state, requested=requested
    )


@pytest.mark.parametrize(
    ("state", "requested", "status"),
    [
        (JobState.RUNNING, Requested.RUN, "running"),
        (JobState.RUNNING, Requested.PAUSE, "pausing"),
        (JobState.RUNNING, Requested.CANCEL, "cancelling"),
        (JobState.PAUSED, Requested.PAUSE, "paused"),
        (JobState.PAUSED, Requested.CANCEL, "cancelling"),
        (JobState.CANCELLED, Requested.CANCEL, "cancelled"),
        (JobState.SUCCEEDED, Requested.CANCEL, "succeeded"),
        (JobState.FAILED, Requested.PAUSE, "failed"),
    ],
)
def test_the_status_tells_what_is_wanted_and_not_yet_so(
    state: JobState, requested: Requested, status: str
) -> None:
    assert job_status(a_record(state, requested)) == status


def test_a_model_is_told_only_when_the_job_succeeded() -> None:
    record = a_record(JobState.RUNNING).model_copy(update={"result": {"model": "/half/done"}})
    assert job_object(record)["fine_tuned_model"] is None
    done = record.model_copy(update={"state": JobState.SUCCEEDED})
    assert job_object(done)["fine_tuned_model"] == record.id


def test_a_job_that_the_machine_paused_reports_its_reason_and_no_error() -> None:
    held_up = a_record(JobState.PAUSED).model_copy(update={"error": "the disk is full"})
    job = job_object(held_up)
    assert job["status"] == "paused"
    assert job["error"] is None
    assert job["weir"]["waiting_for"] == "the disk is full"
    by_its_user = job_object(held_up.model_copy(update={"requested": Requested.PAUSE}))
    assert by_its_user["error"] is None
    assert by_its_user["weir"]["waiting_for"] is None


def test_a_job_tells_which_references_graders_cannot_read() -> None:
    changes = {"unreadable_answers": 3, "readable_solutions": 0.5}
    details = job_object(a_record(JobState.RUNNING).model_copy(update=changes))["weir"]
    assert {name: details[name] for name in changes} == changes


def test_the_method_comes_back_with_its_grader_and_auto_resolved() -> None:
    grader = {
        "type": "string_check",
        "name": "same",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    sent = {"n_epochs": None, "batch_size": 2, "learning_rate_multiplier": None}
    settings = {"grader": grader, "hyperparameters": {**sent, "compute_multiplier": 2.0}}
    request = {"method": {"type": "reinforcement", "reinforcement": settings}}
    job = job_object(
        a_record(JobState.QUEUED).model_copy(update={"request": request, "num_tasks": 4})
    )
    resolved = {"n_epochs": 1, "batch_size": 2}  # of 2 steps of 2 groups on 4 tasks
    resolved |= {"learning_rate_multiplier": 1.0, "compute_multiplier": 2.0}
    settings["hyperparameters"] = resolved
    assert job["method"] == {"type": "reinforcement", "reinforcement": settings}
    assert FineTuningJob.model_validate(job).method  # strictly, unlike the SDK itself


def test_one_key_of_one_caller_is_one_job() -> None:
    assert Repeat("k", "a").job_id == Repeat("k", "a").job_id
    ids = {Repeat(key, caller).job_id for key, caller in [("k", "a"), ("k", "b"), ("l", "a")]}
    assert len(ids) == 3
    assert Repeat().job_id != Repeat().job_id
