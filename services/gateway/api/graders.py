"""The routes of graders: check one, or try it on a response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from protocol.messages import NOT_GIVEN, Graded, Score, Task, Trial, TrialResult, Ungradable
from protocol.recipe import explain
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
        if reward is None or (job_reward is not None and self.grader is not None):
            raise wrong("grader", "give either a grader or the id of a job")
        task = _build_task(self.item or {})
        for check in reward.outcome:
            if check.verifier == "math_answer" and task.answer is None:
                raise wrong("item.answer", f"missing, but {check.label} needs it; add it")
            if check.verifier == "model_judge" and task.prompt == NOT_GIVEN:
                raise wrong("item.prompt", f"missing, but {check.label} needs it; add it")
        return Trial(id=secrets.token_hex(12), reward=reward, task=task, text=self.model_sample)


@router.post("/validate")
async def validate_grader(body: GraderToValidate, jobs: Jobs) -> Json:
    """Check a grader as a job would."""
    await check_graders(jobs.exchange, build_reward(body.grader, "grader"), "grader")
    return body.model_dump(mode="json", exclude_unset=True)


@router.post("/run", dependencies=[TRIALS])
async def run_grader(body: GraderToRun, jobs: Jobs) -> Json:
    """Grade one response with this grader, or with the graders of a job."""
    job_reward = None if body.job is None else (await jobs.get(body.job)).recipe.reward
    return result_object(body.grader, await run_trial(jobs.exchange, body.to_trial(job_reward)))


def result_object(grader: AnyGrader | None, result: TrialResult) -> Json:
    """Return a result in OpenAI's shape, and Weir's own fields under ``weir``.

    The reward of an ungradable response is null.
    """
    values = {label: _graded_value(score) for label, score in result.scores.items()}
    grader_type = "job" if grader is None else grader.type
    return {
        "reward": _graded_value(result.outcome),
        "metadata": {
            "name": (grader and grader.name) or grader_type,
            "type": grader_type,
            "errors": _error_flags(result),
            "execution_time": result.seconds,
            "scores": values,
            "token_usage": sum(result.tokens.values()),
            "sampled_model_name": None,
        },
        "model_grader_token_usage_per_model": dict(result.tokens),
        "sub_rewards": values if isinstance(grader, MultiGrader) else {},
        "weir": result.model_dump(mode="json", include={"outcome", "process", "scores", "details"}),
    }


def _error_flags(result: TrialResult) -> dict[str, Any]:
    scores = (result.outcome, *result.scores.values())
    reasons = {score.reason for score in scores if isinstance(score, Ungradable)}
    flags: dict[str, Any] = {name: bool(reasons & known) for name, known in _FLAGS.items()}
    flags |= dict.fromkeys(_UNUSED_FLAGS, False)
    flags["other_error"] = bool(reasons.difference(*_FLAGS.values()))
    for name in _FLAGS_WITH_DETAILS:
        if _FLAGS[name] & result.details.keys():
            details = [result.details[reason] for reason in _FLAGS[name] & reasons]
            flags[f"{name}_details"] = details[0] if details else None
    return flags


def _build_task(item: Mapping[str, JsonValue]) -> Task:
    """Return the item as a task of a job; its further fields are the task's metadata."""
    texts = {"id": "item"}
    values = {name: value for name, value in item.items() if value not in (None, "")}
    if "reference_answer" in values:
        texts["answer"] = as_text(values["reference_answer"])
    texts |= {name: as_text(values[name]) for name in _TEXT_FIELDS if name in values}
    fields: dict[str, Any] = {**texts, "metadata": values.get("metadata", {})}
    further = {name: value for name, value in item.items() if name not in Task.model_fields}
    if isinstance(fields["metadata"], dict):
        fields["metadata"] = {**fields["metadata"], **further}
    if "prompt" not in texts:
        fields |= (
            {"messages": values["messages"]} if "messages" in values else {"prompt": NOT_GIVEN}
        )
    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        lines = [f"item.{line}" for line in explain(error, whole="item").splitlines()]
        raise from_lines(lines, code="invalid_item") from error


def _graded_value(score: Score | None) -> float | None:
    return score.value if isinstance(score, Graded) else None
