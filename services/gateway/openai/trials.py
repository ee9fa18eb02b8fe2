"""A grader tried on one response: by a grader that runs, as a job's responses are graded."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from protocol.exchange import Exchange
from protocol.messages import NOT_GIVEN, Graded, Score, Task, Trial, TrialResult, Ungradable
from protocol.recipe import explain
from protocol.tasks import as_text
from pydantic import Field, JsonValue, ValidationError

from services.gateway.errors import Problem, from_lines, in_time, wrong
from services.gateway.openai.body import Body
from services.gateway.openai.graders import AnyGrader, MultiGrader, reward_of

_MOST_WAITING = 32
_TAKEN_WITHIN_S = 10.0
_DONE_WITHIN_S = 130.0  # a grader gives up before
_LOOK_S = 1.0
_TEXTS = ("id", "prompt", "answer", "solution")
_FLAGS = {  # of OpenAI's, by the reasons of what could not be graded
    "formula_parse_error": {"formula_undefined"},
    "invalid_variable_error": {"unknown_field"},
    "model_grader_parse_error": {"no_verdict"},
    "model_grader_refusal_error": {"judge_refused"},
    "model_grader_server_error": {"judge_failed", "judge_timeout", "over_judge_context"},
    "python_grader_runtime_error": {"python_error", "python_memory", "python_timeout"},
    "python_grader_server_error": {"python_crash", "starved"},
    "unresponsive_reward_error": {"not_in_time"},
}
_NEVER = ("sample_parse_error", "truncated_observation_error")


class GraderToRun(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/run``."""

    grader: AnyGrader
    model_sample: str = Field(description="{{sample.output_text}}")
    item: Mapping[str, JsonValue] | None = Field(default=None, description="{{item.…}}")

    def trial(self) -> Trial:
        """What a grader is asked; 400 if it is wrong, or asks for a column that the item lacks."""
        reward = reward_of(self.grader, "grader")
        task = _task(self.item or {})
        for check in reward.outcome:
            if check.verifier == "math_answer" and task.answer is None:
                raise wrong("item.answer", f"missing, but {check.label} compares with it; add it")
            if check.verifier == "model_judge" and task.prompt == NOT_GIVEN:
                raise wrong("item.prompt", f"missing, but {check.label} is told it; add it")
        return Trial(id=secrets.token_hex(12), reward=reward, task=task, text=self.model_sample)


async def run_trial(
    exchange: Exchange,
    trial: Trial,
    taken_within_s: float = _TAKEN_WITHIN_S,
    done_within_s: float = _DONE_WITHIN_S,
) -> TrialResult:
    """Have a free grader do it; 400 if the graders lack what it needs, 503 if none does it."""
    if not await in_time(exchange.ask_trial(trial, _MOST_WAITING)):
        raise _unavailable(f"{_MOST_WAITING} trials of graders wait already")
    result = await _result(exchange, trial, taken_within_s)
    if result is None and await in_time(exchange.withdraw_trial(trial)):
        raise _unavailable(
            f"no grader took it within {taken_within_s:g} s: none runs, or all are busy with "
            "other trials; see that one runs"
        )
    result = result or await _result(exchange, trial, done_within_s)
    if result is None:
        raise _unavailable("the grader that took it has ended")
    if result.missing:
        raise wrong("grader", result.missing, code="invalid_grader")
    return result


async def _result(exchange: Exchange, trial: Trial, within_s: float) -> TrialResult | None:
    """Look again and again, so that a long wait is none for a Redis that has fallen silent."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        wait_s = min(left_s, _LOOK_S)
        if result := await in_time(exchange.trial_result(trial.id, wait_s), wait_s):
            return result
    return None


def run_object(grader: AnyGrader, result: TrialResult) -> dict[str, Any]:
    """What became of it in OpenAI's shape, and in Weir's own under ``weir``.

    What could not be graded has no number: its reward is null.
    """
    values = {label: _value(score) for label, score in result.scores.items()}
    return {
        "reward": _value(result.outcome),
        "metadata": {
            "name": grader.name or grader.type,
            "type": grader.type,
            "errors": _errors(result),
            "execution_time": result.seconds,
            "scores": values,
            "token_usage": sum(result.tokens.values()),
            "sampled_model_name": None,
        },
        "model_grader_token_usage_per_model": dict(result.tokens),
        "sub_rewards": values if isinstance(grader, MultiGrader) else {},
        "weir": result.model_dump(mode="json", include={"outcome", "scores", "details"}),
    }


def _errors(result: TrialResult) -> dict[str, Any]:
    scores = (result.outcome, *result.scores.values())
    lost = {score.reason for score in scores if isinstance(score, Ungradable)}
    flags = {name: bool(lost & reasons) for name, reasons in _FLAGS.items()}
    known = set().union(*_FLAGS.values())
    details = {
        f"{name}_details": next((result.details[why] for why in _FLAGS[name] & lost), None)
        for name in ("model_grader_server_error", "python_grader_runtime_error")
        if _FLAGS[name] & result.details.keys()
    }
    return {**flags, **dict.fromkeys(_NEVER, False), "other_error": bool(lost - known), **details}


def _task(item: Mapping[str, JsonValue]) -> Task:
    """The item as a task of a job would have it; what it has beyond that is its metadata."""
    given = {name: value for name, value in item.items() if value not in (None, "")}
    texts = {name: as_text(given[name]) for name in _TEXTS if name in given}
    texts.setdefault("id", "item")
    if "reference_answer" in given:
        texts.setdefault("answer", as_text(given["reference_answer"]))
    others = {name: value for name, value in item.items() if name not in Task.model_fields}
    own = given.get("metadata", {})
    metadata = {**own, **others} if isinstance(own, dict) else own
    asked = {"messages": given["messages"]} if "messages" in given else {"prompt": NOT_GIVEN}
    try:
        return Task.model_validate(
            {**({} if "prompt" in texts else asked), **texts, "metadata": metadata}
        )
    except ValidationError as error:
        lines = [f"item.{line}" for line in explain(error, whole="item").splitlines()]
        raise from_lines(lines, code="invalid_item") from error


def _value(score: Score | None) -> float | None:
    return score.value if isinstance(score, Graded) else None


def _unavailable(why: str) -> Problem:
    message = f"{why}; the request may be repeated"
    return Problem(503, message, code="no_grader", headers={"Retry-After": "2"})
