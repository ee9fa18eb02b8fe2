"""A job in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from protocol.exchange import Sought, UnreadableRecord
from protocol.messages import JobRecord, JobState, Requested

from services.gateway.core.models.checkpoints import checkpoint_of
from services.gateway.core.models.folders import JOB_ID

_IF_AUTO = {
    "learning_rate_multiplier": 1.0,
    "compute_multiplier": 1.0,
    "reasoning_effort": "default",
}
_STATES = {  # in which a job can have a status that is none of them
    "pausing": [JobState.RUNNING],
    "cancelling": [JobState.RUNNING, JobState.PAUSED],
}
CANCELLABLE = ("queued", "running", "pausing", "paused")
ENDED = ("succeeded", "failed", "cancelled")
StatusName = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "succeeded", "failed", "cancelled"
]
AnyJob: TypeAlias = JobRecord | UnreadableRecord
# What is said, in OpenAI's shape and in Weir's own, about a job of which nothing is known.
_BLANK: dict[str, Any] = {
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
        **{"step": 0, "steps": 0, "waiting_for": None, "place": None, "forked_from": None},
        "recipe": {"name": None},
    },
}


def job_object(job: AnyJob) -> dict[str, Any]:
    """A job in OpenAI's shape, and Weir's own words about it under ``weir``."""
    if isinstance(job, UnreadableRecord):
        error = _error("unreadable_record", str(job))
        return _BLANK | {"id": job.id, "status": job.state.value, "error": error}
    return _BLANK | _told_by(job)


def has_results(job: AnyJob) -> bool:
    return isinstance(job, JobRecord) and job.state.is_final and job.step > 0


def result_id(job_id: str) -> str:
    """The id of the file that tells what a job's steps measured."""
    return f"file-{job_id}"


def _told_by(record: JobRecord) -> dict[str, Any]:
    recipe, request, result = record.recipe, record.request, record.result
    succeeded = record.state is JobState.SUCCEEDED
    has_error = record.error is not None and record.state is not JobState.PAUSED
    # Paused, though nobody has asked for it.
    is_held_up = record.state is JobState.PAUSED and record.requested is Requested.RUN
    return {
        "id": record.id,
        "created_at": int(record.created_at),
        "finished_at": None if record.finished_at is None else int(record.finished_at),
        "model": request.get("model", recipe.model.path),
        "fine_tuned_model": record.id if succeeded and result.get("model") else None,
        "status": status_of(record),
        "error": _error("job_failed", record.error) if has_error else None,
        "training_file": recipe.tasks.train,
        "validation_file": recipe.tasks.held_out,
        "result_files": [result_id(record.id)] if has_results(record) else [],
        "seed": recipe.training.seed,
        "trained_tokens": result.get("trained_tokens"),
        "hyperparameters": _hyperparameters(record),
        "method": {"type": "reinforcement", "reinforcement": _reinforcement(record)},
        "metadata": request.get("metadata") or {},
        "user_provided_suffix": request.get("suffix"),
        "weir": {
            "step": record.step,
            "steps": None if recipe.client else recipe.training.steps,
            "attempt": record.attempt,
            "requested": record.requested.value,
            "waiting_for": record.error if is_held_up else None,
            "started_at": record.started_at,
            "unreadable_answers": record.unreadable_answers,
            "readable_solutions": record.readable_solutions,
            "forked_from": _origin(str(request.get("model"))),
            "result": dict(result),
            "recipe": recipe.model_dump(mode="json"),
        },
    }


def _origin(model: str) -> dict[str, Any] | None:
    """The job whose model, or whose checkpoint of a step, another one starts from."""
    if (checkpoint := checkpoint_of(model, Path())) is not None:
        return {"job": checkpoint.job_id, "step": checkpoint.step}
    return {"job": model, "step": None} if JOB_ID.fullmatch(model) else None


def _error(code: str, message: str | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None}


def _reinforcement(record: JobRecord) -> dict[str, Any]:
    """OpenAI's settings of the method; a reward that came as a recipe's is under ``weir``."""
    settings: dict[str, Any] = {"hyperparameters": _hyperparameters(record)}
    if (grader := _sent(record).get("grader")) is not None:
        settings["grader"] = grader
    return settings


def _hyperparameters(record: JobRecord) -> dict[str, Any]:
    """Those that were sent, and in the place of 'auto' what the job does."""
    training, evaluation = record.recipe.training, record.recipe.evaluation
    own = {
        "batch_size": training.groups_per_step,
        "n_epochs": record.num_tasks
        and max(1, training.steps * training.groups_per_step // record.num_tasks),
        "eval_interval": evaluation.every if evaluation else None,
        "eval_samples": evaluation.samples if evaluation else None,
    }
    sent = record.request.get("hyperparameters") or _sent(record).get("hyperparameters") or {}
    assert isinstance(sent, dict)
    told = {**_IF_AUTO, **own, **{name: value for name, value in sent.items() if value is not None}}
    told = {name: value for name, value in told.items() if name in own or name in sent}
    return {name: value for name, value in told.items() if value is not None}


def _sent(record: JobRecord) -> Mapping[str, Any]:
    method: Any = record.request.get("method") or {}
    return method.get("reinforcement", {})


@dataclass(frozen=True)
class JobFilter(Sought):
    """Which jobs are sought; ``statuses`` as a job tells them, none: any."""

    statuses: Sequence[str] = ()

    def fits(self, record: AnyJob) -> bool:
        return super().fits(record) and (
            not self.statuses
            or (isinstance(record, JobRecord) and status_of(record) in self.statuses)
        )

    def among(self, statuses: Sequence[str]) -> Self | None:
        """The same with one of these statuses; None if no job can be."""
        both = [status for status in statuses if status in (self.statuses or statuses)]
        sought = {name: getattr(self, name) for name in ("text", "name", "model", "metadata")}
        return self.of(both, **sought) if both else None

    @classmethod
    def of(cls, statuses: Sequence[str], **sought: Any) -> Self:
        states = {state for status in statuses for state in _STATES.get(status, [status])}
        return cls(tuple(map(JobState, sorted(states))), **sought, statuses=statuses)


def status_of(record: JobRecord) -> str:
    """OpenAI's status, or one of Weir's own: paused; pausing and cancelling while it still runs."""
    if record.state in {JobState.RUNNING, JobState.PAUSED}:
        if record.requested is Requested.CANCEL:
            return "cancelling"
        if record.requested is Requested.PAUSE and record.state is JobState.RUNNING:
            return "pausing"
    return record.state.value
