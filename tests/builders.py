"""Builders of messages: valid as they are, with every part open to change."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from protocol.messages import (
    Episode,
    FailureKind,
    Grade,
    Graded,
    GradedGroup,
    GroupFailure,
    JobEvent,
    JobRecord,
    PolicyVersion,
    Response,
    RolloutGroup,
    RolloutRequest,
    Status,
    Task,
    VersionSpan,
)
from protocol.recipe import Purpose, Recipe, Sampling, parse_recipe


def a_task(**changes: Any) -> Task:
    return Task.model_validate({"id": "sum-1", "prompt": "1+1=", "answer": "2", **changes})


def a_recipe(**overrides: Any) -> Recipe:
    """A small recipe; ``a_recipe(training={"steps": 3})`` changes one key of one table."""
    data: dict[str, Any] = {
        "name": "small",
        "model": {"path": "models/tiny", "dtype": "float32", "max_context": 64},
        "tasks": {"train": "train.jsonl"},
        "rollout": {"group_size": 2, "sampling": {"max_tokens": 8}},
        "reward": {"process": "equation_steps"},
        "training": {"steps": 2, "groups_per_step": 2},
    }
    for table, values in overrides.items():
        if isinstance(values, dict):
            values = {**data.get(table, {}), **values}
        data[table] = values
    return parse_recipe(data)


def a_request(
    *,
    number: int = 0,
    purpose: Purpose = Purpose.TRAIN,
    job_id: str = "job",
    attempt: int = 1,
    group_size: int = 2,
    **changes: Any,
) -> RolloutRequest:
    values: dict[str, Any] = {
        "job_id": job_id,
        "attempt": attempt,
        "number": number,
        "purpose": purpose,
        "step": 0,
        "task": a_task(),
        "group_size": group_size,
        "sampling": Sampling(max_tokens=8),
        "seed": number,
    }
    return RolloutRequest.model_validate({**values, **changes})


def a_group(
    request: RolloutRequest | None = None,
    lengths: Sequence[int] | None = None,
    *,
    texts: Sequence[str] | None = None,
    episodes: Sequence[Episode] = (),
    version: int = 0,
    **changes: Any,
) -> RolloutGroup:
    """A group of responses with ``lengths`` tokens each; token ids count from 100."""
    if request is None:
        request = a_request(group_size=2 if lengths is None else len(lengths))
    lengths = [2] * request.group_size if lengths is None else lengths
    texts = texts or [f"response {index}" for index in range(len(lengths))]
    num_tokens, own = sum(lengths), changes.get("own", True)
    values: dict[str, Any] = {
        "request": request,
        "prompt_ids": np.array([1, 2, 3]),
        "token_ids": np.arange(100, 100 + num_tokens),
        "behavior_logprobs": np.where(own, np.linspace(-2.0, -0.5, num_tokens), 0),
        "lengths": np.array(lengths, dtype=np.int32),
        "responses": [
            Response.model_validate(
                {
                    "text": text,
                    "finish_reason": "stop",
                    "spans": [a_span(length, version, request.attempt)] if length else [],
                    "episode": episode,
                }
            )
            for text, length, episode in zip_longest(texts, lengths, episodes)
        ],
        "sampling_seconds": 0.5,
    }
    return RolloutGroup.model_validate({**values, **changes})


def an_episodes_group(*rewards: float | None, **of_request: Any) -> RolloutGroup:
    """Each of four tokens, of which the second is not the policy's; None: it broke."""
    lengths = [0 if reward is None else 4 for reward in rewards]
    responses = [
        Response.model_validate(
            {
                "text": rf"\boxed{{{index}}}",
                "finish_reason": "stop",
                "spans": [a_span(length)] if length else [],
                "episode": {"problem": "episode_failed", "words": f"kaputt {index}"}
                if reward is None
                else {"reward": reward, "turns": 2},
            }
        )
        for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    ]
    request = a_request(group_size=len(rewards), in_environment=True, **of_request)
    own = np.tile([1, 0, 1, 1], sum(map(bool, lengths)))
    return a_group(request, lengths, responses=responses, own=own)


def a_span(length: int, version: int = 0, attempt: int = 1) -> VersionSpan:
    return VersionSpan(attempt=attempt, version=version, start=0, end=length)


def a_graded_group(
    group: RolloutGroup | None = None, outcomes: Sequence[float] | None = None, **changes: Any
) -> GradedGroup:
    group = group or a_group()
    outcomes = outcomes or [1.0] * len(group.responses)
    values: dict[str, Any] = {
        "purpose": group.request.purpose,
        "number": group.request.number,
        "group": group,
        "grades": [Grade(outcome=Graded(value=value)) for value in outcomes],
        "grading_seconds": 0.1,
    }
    return GradedGroup.model_validate({**values, **changes})


def a_job_record(job_id: str = "job", **changes: Any) -> JobRecord:
    values: dict[str, Any] = {"id": job_id, "created_at": 1_800_000_000.25, "recipe": a_recipe()}
    return JobRecord.model_validate({**values, **changes})


def a_policy(number: int = 0, *, attempt: int = 1, job_id: str = "job") -> PolicyVersion:
    folder = f"{job_id}/{attempt}.{number}"
    return PolicyVersion(
        job_id=job_id, attempt=attempt, number=number, folder=folder, digest="0" * 64
    )


def an_event(event_id: str = "event-1", *, job_id: str = "job", **changes: Any) -> JobEvent:
    values: dict[str, Any] = {
        "id": event_id,
        "job_id": job_id,
        "created_at": 1_800_000_000.5,
        "message": "something happened",
    }
    return JobEvent.model_validate({**values, **changes})


def a_failed_group(
    number: int = 0,
    kind: str = "deaths",
    message: str = "3 workers died",
    purpose: Purpose = Purpose.TRAIN,
) -> GradedGroup:
    failure = GroupFailure(kind=FailureKind(kind), message=message)
    return GradedGroup(purpose=purpose, number=number, failure=failure)


def as_dict(event: JobEvent) -> dict[str, Any]:
    """The data of an event, as REST clients see it."""
    return event.data.to_json()


def a_status(service: str, doing: str = "is_idle", **changes: Any) -> Status:
    values = {
        **{"name": f"{service}-0", "service": service, "replica": f"{service}-0", "beats": 7},
        **{"ready": True, "doing": doing, "for_s": 95.0, "starts": 0},
    }
    return Status.model_validate(values | changes)
