"""The routes of graders: check one, or try it on a response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from protocol.messages import NOT_GIVEN, Graded, Score, Task, Trial, TrialResult, Ungradable
from protocol.recipe_files import explain
from protocol.rewards import Reward
from protocol.tasks import as_text
from pydantic import Field, JsonValue, ValidationError

from services.gateway.api.dependencies import Jobs
from services.gateway.api.openai.body import Body
from services.gateway.api.openai.graders import AnyGrader, MultiGrader, build_reward
from services.gateway.api.openai.lists import Json
from services.gateway.api.places import TRIALS
from services.gateway.core.jobs.refusals import check_graders
from services.gateway.core.jobs.trials import run_trial
from services.gateway.errors import from_lines, wrong

_TEXT_FIELDS = ("id", "prompt", "answer", "solution")
# OpenAI's flags, by the reasons of ungradable responses.
_FLAGS = {
    "formula_parse_error": {"formula_undefined"},
    "invalid_variable_error": {"unknown_field"},
    "model_grader_parse_error": {"no_verdict", "verdict_cut"},
    "model_grader_refusal_error": {"judge_refused"},
    "model_grader_server_error": {"judge_failed", "judge_timeout", "over_judge_context"},
    "python_grader_runtime_error": {"python_error", "python_memory", "python_timeout"},
    "python_grader_server_error": {"python_crash", "starved"},
    "unresponsive_reward_error": {"not_in_time"},
}
_UNUSED_FLAGS = ("sample_parse_error", "truncated_observation_error")
_FLAGS_WITH_DETAILS = ("model_grader_server_error", "python_grader_runtime_error")

router = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


class GraderToValidate(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/validate``."""

    grader: AnyGrader


class GraderToRun(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/run``."""

    grader: AnyGrader | None = None
    job: str | None = Field(default=None, description="the job whose reward grades")
    model_sample: str = Field(description="{{sample.output_text}}")
    item: Mapping[str, JsonValue] | None = Field(default=None, description="{{item.…}}")

    def to_trial(self, job_reward: Reward | None = None) -> Trial:
        """Return the trial for a grader; 400 if the item lacks a column that it needs."""
        reward = job_reward if self.grader is None else build_reward(self.grader, "grader")
        if reward is None or (job_reward and self.grader):
            raise wrong("grader", "give either a grader or the id of a job")
        task = _build_task(self.item or {})
        missing = {}
        if task.answer is None:
            missing["math_answer"] = "item.answer"
        if task.prompt == NOT_GIVEN:
            missing["model_judge"] = "item.prompt"
        for check in reward.outcome:
            field = missing.get(check.verifier)
            if field is not None:
                raise wrong(field, f"missing, but {check.label} needs it; add it")
        return Trial(id=secrets.token_hex(12), reward=reward, task=task, text=self.model_sample)


@router.post("/validate")
async def validate_grader(body: GraderToValidate, jobs: Jobs) -> Json:
    """Check a grader as a job would."""
    reward = build_reward(body.grader, "grader")
    await check_graders(jobs.exchange, reward, "grader")
    return body.model_dump(mode="json", exclude_unset=True)


@router.post("/run", dependencies=[TRIALS])
async def run_grader(body: GraderToRun, jobs: Jobs) -> Json:
    """Grade one response with this grader, or with the graders of a job."""
    job_reward = None
    if body.job is not None:
        record = await jobs.get(body.job)
        job_reward = record.recipe.reward
    trial = body.to_trial(job_reward)
    result = await run_trial(jobs.exchange, trial)
    return result_object(body.grader, result)


def result_object(grader: AnyGrader | None, result: TrialResult) -> Json:
    """Return a result in OpenAI's shape, and Weir's own fields under ``weir``.

    The reward of an ungradable response is null.
    """
    values = {label: _graded_value(score) for label, score in result.scores.items()}
    grader_type = "job"
    name = None
    if grader is not None:
        grader_type = grader.type
        name = grader.name
    is_multi = isinstance(grader, MultiGrader)
    weir_fields = {"outcome", "process", "scores", "details"}
    return {
        "reward": _graded_value(result.outcome),
        "metadata": {
            "name": name or grader_type,
            "type": grader_type,
            "errors": _error_flags(result),
            "execution_time": result.seconds,
            "scores": values,
            "token_usage": sum(result.tokens.values()),
            "sampled_model_name": None,
        },
        "model_grader_token_usage_per_model": dict(result.tokens),
        "sub_rewards": values if is_multi else {},
        "weir": result.model_dump(mode="json", include=weir_fields),
    }


def _error_flags(result: TrialResult) -> dict[str, Any]:
    scores = (result.outcome, *result.scores.values())
    reasons = {score.reason for score in scores if isinstance(score, Ungradable)}
    flags: dict[str, Any] = dict.fromkeys(_UNUSED_FLAGS, False)
    for name, flag_reasons in _FLAGS.items():
        present = reasons & flag_reasons
        flags[name] = bool(present)
        has_details = not flag_reasons.isdisjoint(result.details)
        if name in _FLAGS_WITH_DETAILS and has_details:
            details = (result.details[reason] for reason in present)
            flags[f"{name}_details"] = next(details, None)
    flags["other_error"] = bool(reasons.difference(*_FLAGS.values()))
    return flags


def _build_task(item: Mapping[str, JsonValue]) -> Task:
    """Return the item as a task of a job; its further fields are the task's metadata."""
    values = {name: value for name, value in item.items() if value not in (None, "")}
    fields: dict[str, Any] = {"id": "item"}
    if "reference_answer" in values:
        fields["answer"] = as_text(values["reference_answer"])
    for name in _TEXT_FIELDS:
        if name in values:
            fields[name] = as_text(values[name])
    if "prompt" not in fields:
        if "messages" in values:
            fields["messages"] = values["messages"]
        else:
            fields["prompt"] = NOT_GIVEN
    metadata = values.get("metadata", {})
    if isinstance(metadata, dict):
        further = {name: value for name, value in item.items() if name not in Task.model_fields}
        metadata = metadata | further
    fields["metadata"] = metadata
    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        problems = explain(error, whole="item").splitlines()
        lines = [f"item.{problem}" for problem in problems]
        raise from_lines(lines, code="invalid_item") from error


def _graded_value(score: Score | None) -> float | None:
    return score.value if isinstance(score, Graded) else None
