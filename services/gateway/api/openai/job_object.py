"""Jobs, checkpoints and result files in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from protocol.exchange import JobQuery, UnreadableRecord
from protocol.messages import JobRecord, JobState, Requested

from services.gateway.core.jobs.results import has_results
from services.gateway.core.jobs.service import AnyJob
from services.gateway.core.models.checkpoints import Checkpoint, parse_checkpoint_id, read_metrics
from services.gateway.core.models.folders import JOB_ID

# OpenAI's values of hyperparameters that were sent as 'auto'.
_AUTO_VALUES = {
    "learning_rate_multiplier": 1.0,
    "compute_multiplier": 1.0,
    "reasoning_effort": "default",
}
# The states of jobs with a status that is no state.
_STATES = {
    "pausing": [JobState.RUNNING],
    "cancelling": [JobState.RUNNING, JobState.PAUSED],
}
CANCELLABLE = ("queued", "running", "pausing", "paused")
ENDED = ("succeeded", "failed", "cancelled")
StatusName = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "succeeded", "failed", "cancelled"
]
# All fields, with the values of a job with an unreadable record.
_DEFAULT_FIELDS: dict[str, Any] = {
    "object": "fine_tuning.job",
    "created_at": 0,
    "finished_at": None,
    "estimated_finish": None,
    "model": "",
    "fine_tuned_model": None,
    "organization_id": "weir",
    "training_file": "",
    "validation_file": None,
    "result_files": [],
    "seed": 0,
    "trained_tokens": None,
    "hyperparameters": {},
    "method": {"type": "reinforcement", "reinforcement": {"hyperparameters": {}}},
    "metadata": {},
    "user_provided_suffix": None,
    "integrations": [],
    "weir": {
        "step": 0,
        "steps": 0,
        "waiting_for": None,
        "place": None,
        "forked_from": None,
        "recipe": {"name": None},
    },
}


def job_object(job: AnyJob) -> dict[str, Any]:
    """Return a job in OpenAI's shape, with Weir's own fields under ``weir``."""
    if isinstance(job, UnreadableRecord):
        error = _error_object("unreadable_record", str(job))
        return _DEFAULT_FIELDS | {"id": job.id, "status": job.state.value, "error": error}
    return _DEFAULT_FIELDS | _record_fields(job)


def _record_fields(record: JobRecord) -> dict[str, Any]:
    recipe = record.recipe
    request = record.request
    result = record.result
    succeeded = record.state is JobState.SUCCEEDED
    has_error = record.error is not None and record.state is not JobState.PAUSED
    hyperparameters = _hyperparameters(record)
    return {
        "id": record.id,
        "created_at": int(record.created_at),
        "finished_at": None if record.finished_at is None else int(record.finished_at),
        "model": request.get("model", recipe.model.path),
        "fine_tuned_model": record.id if succeeded and result.get("model") else None,
        "status": job_status(record),
        "error": _error_object("job_failed", str(record.error)) if has_error else None,
        "training_file": recipe.tasks.train,
        "validation_file": recipe.tasks.held_out,
        "result_files": [result_file_id(record.id)] if has_results(record) else [],
        "seed": recipe.training.seed,
        "trained_tokens": result.get("trained_tokens"),
        "hyperparameters": hyperparameters,
        "method": {
            "type": "reinforcement",
            "reinforcement": {"hyperparameters": hyperparameters, **_sent_grader(record)},
        },
        "metadata": request.get("metadata") or {},
        "user_provided_suffix": request.get("suffix"),
        "weir": _weir_fields(record),
    }


def _weir_fields(record: JobRecord) -> dict[str, Any]:
    recipe = record.recipe
    # A job is paused with an error if something must be repaired or decided first.
    is_held_up = record.state is JobState.PAUSED and record.error is not None
    return {
        "step": record.step,
        "steps": None if recipe.client else recipe.training.steps,
        "attempt": record.attempt,
        "requested": record.requested.value,
        "waiting_for": str(record.error) if is_held_up else None,
        "started_at": record.started_at,
        "unreadable_answers": record.unreadable_answers,
        "readable_solutions": record.readable_solutions,
        "forked_from": _origin(str(record.request.get("model"))),
        "result": dict(record.result),
        "recipe": recipe.model_dump(mode="json"),
    }


def _origin(model: str) -> dict[str, Any] | None:
    """Return the job, and the step of its checkpoint, that a job starts from."""
    checkpoint = parse_checkpoint_id(model, Path())
    if checkpoint is not None:
        return {"job": checkpoint.job_id, "step": checkpoint.step}
    return {"job": model, "step": None} if JOB_ID.fullmatch(model) else None


def _error_object(code: str, message: str | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None}


def _sent_grader(record: JobRecord) -> dict[str, Any]:
    grader = _reinforcement_request(record).get("grader")
    return {} if grader is None else {"grader": grader}


def _hyperparameters(record: JobRecord) -> dict[str, Any]:
    """Return the values that were sent, and the job's values for 'auto'."""
    training = record.recipe.training
    evaluation = record.recipe.evaluation
    sent = record.request.get("hyperparameters")
    sent = sent or _reinforcement_request(record).get("hyperparameters") or {}
    assert isinstance(sent, dict)
    n_epochs = None
    if record.num_tasks and not record.recipe.only_evaluates:
        n_epochs = max(1, training.steps * training.groups_per_step // record.num_tasks)
    values = {
        **{name: value for name, value in _AUTO_VALUES.items() if name in sent},
        "batch_size": training.groups_per_step,
        "n_epochs": n_epochs,
        "eval_interval": evaluation.every if evaluation else None,
        "eval_samples": evaluation.samples if evaluation else None,
    }
    values |= {name: value for name, value in sent.items() if value is not None}
    return {name: value for name, value in values.items() if value is not None}


def _reinforcement_request(record: JobRecord) -> Mapping[str, Any]:
    method: Any = record.request.get("method") or {}
    return method.get("reinforcement", {})


@dataclass(frozen=True)
class JobFilter(JobQuery):
    """Filters for jobs. ``statuses`` has those of `job_status`; none excludes no job."""

    statuses: Sequence[str] = ()

    def fits(self, record: AnyJob) -> bool:
        if not super().fits(record):
            return False
        if not self.statuses:
            return True
        return isinstance(record, JobRecord) and job_status(record) in self.statuses

    def restrict(self, statuses: Sequence[str]) -> Self | None:
        """Return the same filters for jobs with one of these statuses; None if no job fits."""
        common = [status for status in statuses if status in (self.statuses or statuses)]
        names = ("text", "name", "model", "metadata")
        filters = {name: getattr(self, name) for name in names}
        return self.from_statuses(common, **filters) if common else None

    @classmethod
    def from_statuses(cls, statuses: Sequence[str], **filters: Any) -> Self:
        states = {state for status in statuses for state in _STATES.get(status, [status])}
        return cls(tuple(map(JobState, sorted(states))), **filters, statuses=statuses)


def job_status(record: JobRecord) -> str:
    """Return OpenAI's status, or one of Weir's own: paused, pausing, cancelling."""
    if record.state in {JobState.RUNNING, JobState.PAUSED}:
        if record.requested is Requested.CANCEL:
            return "cancelling"
        if record.requested is Requested.PAUSE and record.state is JobState.RUNNING:
            return "pausing"
    return record.state.value


def checkpoint_object(checkpoint: Checkpoint) -> dict[str, Any]:
    metrics = read_metrics(checkpoint)
    if "loss" in metrics:
        metrics["train_loss"] = metrics.pop("loss")
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": checkpoint.created_at,
        "fine_tuned_model_checkpoint": checkpoint.id,
        "fine_tuning_job_id": checkpoint.job_id,
        "step_number": checkpoint.step,
        "metrics": {**metrics, "step": checkpoint.step},
    }


def result_file_id(job_id: str) -> str:
    return f"file-{job_id}"
