"""The job object of the API, and the ids of repeated submissions."""

from openai.types.fine_tuning import FineTuningJob

from services.gateway.api.openai.job_object import job_object, job_status
from services.gateway.core.jobs.service import Repeat
from tests.builders import a_job_record
from tests.tables import table
from tests.unit.gateway.graders import EXACT


@table("""
    state     | requested | status
    running   | run       | running
    running   | pause     | pausing
    running   | cancel    | cancelling
    paused    | pause     | paused
    paused    | cancel    | cancelling
    cancelled | cancel    | cancelled
    succeeded | cancel    | succeeded
    failed    | pause     | failed
""")
def test_the_status_tells_what_is_wanted_and_not_yet_so(
    state: str, requested: str, status: str
) -> None:
    assert job_status(a_job_record(state=state, requested=requested)) == status


def test_a_model_is_told_only_when_the_job_succeeded() -> None:
    for state, model in (("running", None), ("succeeded", "job")):
        record = a_job_record(state=state, result={"model": "/half/done"})
        assert job_object(record)["fine_tuned_model"] == model


def test_a_job_that_is_paused_for_a_reason_reports_it_and_no_error() -> None:
    for requested, reason in (
        ("run", "the disk is full"),
        ("pause", "the budget is spent"),
        ("pause", None),
    ):
        error = reason and {"message": reason}
        record = a_job_record(state="paused", error=error, requested=requested)
        job = job_object(record)
        assert job["status"] == "paused"
        assert job["error"] is None
        assert job["weir"]["waiting_for"] == reason


def test_the_method_comes_back_with_its_grader_and_auto_resolved() -> None:
    sent = {"n_epochs": None, "batch_size": 2, "learning_rate_multiplier": None}
    settings = {"grader": EXACT, "hyperparameters": {**sent, "compute_multiplier": 2.0}}
    request = {"method": {"type": "reinforcement", "reinforcement": settings}}
    changes = {"unreadable_answers": 3, "readable_solutions": 0.5}
    job = job_object(a_job_record(state="queued", request=request, num_tasks=4, **changes))
    resolved = {"n_epochs": 1, "batch_size": 2}  # of 2 steps of 2 groups on 4 tasks
    resolved |= {"learning_rate_multiplier": 1.0, "compute_multiplier": 2.0}
    settings["hyperparameters"] = resolved
    assert job["method"] == request["method"]
    assert job["weir"].items() >= changes.items()
    assert FineTuningJob.model_validate(job).method  # strictly, unlike the SDK itself


def test_one_key_of_one_caller_is_one_job() -> None:
    assert Repeat("k", "a").job_id == Repeat("k", "a").job_id
    ids = {Repeat(key, caller).job_id for key, caller in [("k", "a"), ("k", "b"), ("l", "a")]}
    assert len(ids) == 3
    assert Repeat().job_id != Repeat().job_id
