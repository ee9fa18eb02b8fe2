"""The rows of the sample store: a step's groups and responses with their values. Pure.

A row is a response; the columns of its group repeat in each of the group's rows. A group that
failed has one row, in which the columns of a response are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from protocol.messages import (
    FailureKind,
    FinishReason,
    Grade,
    GradedGroup,
    GroupFailure,
    Response,
    RolloutGroup,
    RolloutRequest,
)
from protocol.recipe import Purpose
from protocol.samples import USED

from services.learner.training.scoring import ScoredGroup

Row = dict[str, Any]
_SPAN = pa.struct([(name, pa.int64()) for name in ("attempt", "version", "start", "end")])
SCHEMA = pa.schema(
    {
        # Columns of the group.
        "key": pa.string(),
        "purpose": pa.string(),
        "number": pa.int64(),
        "attempt": pa.int64(),
        # Steps done when the group was used or dropped; the critic's for a pretrain group.
        "step": pa.int64(),
        # `USED`, or why it was dropped.
        "fate": pa.string(),
        "failure": pa.string(),
        # Seconds since 1970.
        "created_at": pa.float64(),
        "grading_seconds": pa.float64(),
        "sampling_seconds": pa.float64(),
        # "" if the group failed.
        "task_id": pa.string(),
        # The task's prompt, unless the task has messages.
        "prompt": pa.string(),
        # JSON, with the whole task.
        "request": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "begins_thinking": pa.bool_(),
        # Columns of the response.
        "index": pa.int64(),
        "text": pa.string(),
        "finish_reason": pa.string(),
        # Which version sampled which tokens.
        "spans": pa.list_(_SPAN),
        # JSON, for a response of several turns.
        "episode": pa.string(),
        # JSON, with marks and comments.
        "grade": pa.string(),
        # Null if it could not be graded.
        "accuracy": pa.float64(),
        "process": pa.float64(),
        # Whether the step trained on it.
        "in_loss": pa.bool_(),
        # The reward that the advantage compares; null also if the advantage leaves it out.
        "reward": pa.float32(),
        # The advantage of all its tokens; null if a critic estimates it.
        "advantage": pa.float32(),
        # Null unless the advantage has these parts; before the process's weight.
        "outcome_advantage": pa.float32(),
        "process_advantage": pa.float32(),
        # The mean of the advantages that its tokens trained with.
        "token_advantage": pa.float64(),
        # Number of the policy's tokens.
        "length": pa.int64(),
        "truncated": pa.bool_(),
        # Nats per token: the mean of -log p under the sampler.
        "surprise": pa.float64(),
        # Nats: the maximum of |learner - sampler| at equal weights.
        "parity_gap": pa.float64(),
        # Columns of the tokens: null if the learner computed none, NaN for a token without one.
        "token_ids": pa.list_(pa.int32()),
        # Nats, of the sampler; NaN in all columns for a token of a tool or an environment.
        "behavior_logprobs": pa.list_(pa.float32()),
        # Nats, of the learner before the step's first update.
        "logprobs": pa.list_(pa.float32()),
        # Nats.
        "entropies": pa.list_(pa.float32()),
        # The advantages that the tokens trained with.
        "token_advantages": pa.list_(pa.float32()),
    }
)


def build_rows(
    groups: Sequence[ScoredGroup],
    tokens: Mapping[str, np.ndarray],
    *,
    attempt: int,
    step: int,
    created_at: float,
) -> Iterator[list[Row]]:
    """Return the rows of each group that a step used or dropped.

    Args:
        tokens: the step's measurements of the policy's tokens in its samples, in their order, by
            the names of the columns.
    """
    masks = [_loss_mask(group) for group in groups]
    ends = np.cumsum([mask.sum() for mask in masks], dtype=int)
    parts = {name: np.split(values, ends) for name, values in tokens.items()}
    for place, group in enumerate(groups):
        head: Row = {"attempt": attempt, "step": step, "fate": group.fate, "created_at": created_at}
        head |= _group_columns(group.graded)
        token_columns: dict[str, np.ndarray] = {}
        if group.fate == USED:
            for name, values in parts.items():
                token_columns[name] = _spread(values[place], masks[place])
        responses = [head | row for row in _response_columns(group, head, token_columns)]
        yield responses or [head]


def parse_graded(rows: Sequence[Row]) -> GradedGroup:
    head = rows[0]
    failure: GroupFailure | None = None
    if head["failure"] is not None:
        kind = FailureKind(head["fate"])
        message = head["failure"].removeprefix(f"{kind}: ")
        failure = GroupFailure(kind=kind, message=message)
    has_responses = head["request"] is not None
    grades = [Grade.model_validate_json(row["grade"]) for row in rows] if has_responses else []
    return GradedGroup(
        purpose=head["purpose"],
        number=head["number"],
        group=_parse_rollout(rows) if has_responses else None,
        grades=tuple(grades),
        failure=failure,
        grading_seconds=head["grading_seconds"],
    )


def read_groups(path: Path) -> list[list[Row]]:
    """Read the rows of each group of a step.

    Raises:
        OSError: naming the file if it cannot be read.
    """
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise OSError(f"{path} cannot be read: {error}") from error
    return [list(group) for _, group in groupby(rows, key=lambda row: row["key"])]


def write_groups(path: Any, groups: Iterable[list[Row]], batch_tokens: int = 2**20) -> None:
    """Write the rows of a step in batches of about ``batch_tokens``.

    Args:
        path: a path or a file that is open for writing.
    """
    texts = [field.name for field in SCHEMA if field.type == pa.string()]
    settings: Any = {"compression": "zstd", "use_dictionary": texts}
    with pq.ParquetWriter(path, SCHEMA, **settings) as writer:
        batch: list[Row] = []
        for group in groups:
            batch += group
            if sum(len(row.get("token_ids", ())) for row in batch) >= batch_tokens:
                writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, SCHEMA))


def _group_columns(graded: GradedGroup) -> Row:
    columns: Row = {
        "key": graded.key,
        "purpose": graded.purpose.value,
        "number": graded.number,
        "failure": graded.failure and str(graded.failure),
        "grading_seconds": graded.grading_seconds,
        "task_id": "",
    }
    group = graded.group
    if group is None:
        return columns
    task = group.request.task
    return columns | {
        "sampling_seconds": group.sampling_seconds,
        "task_id": task.id,
        "prompt": task.prompt,
        "request": group.request.model_dump_json(),
        "prompt_ids": group.prompt_ids,
        "begins_thinking": group.begins_thinking,
    }


def _response_columns(
    group: ScoredGroup, head: Row, tokens: Mapping[str, np.ndarray]
) -> Iterator[Row]:
    rollout = group.graded.group
    if rollout is None:
        return
    values = _recipe_values(group)
    is_trained = group.fate == USED and group.graded.purpose is not Purpose.EVAL
    sampled = np.where(rollout.policy_mask, rollout.behavior_logprobs, math.nan)
    lengths = rollout.policy_lengths.tolist()
    for index, (start, end) in enumerate(rollout.bounds()):
        response = rollout.responses[index]
        grade = group.graded.grades[index]
        behavior = sampled[start:end]
        measured = {name: column[start:end] for name, column in tokens.items()}
        yield {
            "index": index,
            "text": response.text,
            "finish_reason": response.finish_reason.value,
            "spans": [span.model_dump() for span in response.spans],
            "episode": response.episode.model_dump_json() if response.episode else None,
            "grade": grade.model_dump_json(),
            "accuracy": grade.accuracy,
            "process": grade.process_score,
            "in_loss": is_trained and bool(group.has_loss[index]),
            **{name: _round_finite(column[index]) for name, column in values.items()},
            "token_advantage": _mean(measured.get("token_advantages", behavior[:0])),
            "length": lengths[index],
            "truncated": response.finish_reason is FinishReason.LENGTH,
            "surprise": 0.0 - (_mean(behavior) or 0.0),
            "parity_gap": _parity_gap(response, head, behavior, measured.get("logprobs")),
            "token_ids": rollout.token_ids[start:end],
            "behavior_logprobs": behavior,
            **measured,
        }


def _recipe_values(group: ScoredGroup) -> dict[str, np.ndarray]:
    """Return the recipe's values of each response's grade, [group]; NaN in an evaluation."""
    unknown = np.full(len(group.has_loss), math.nan)
    is_evaluation = group.graded.purpose is Purpose.EVAL
    return {
        "reward": unknown if is_evaluation else group.rewards,
        "advantage": group.advantages if group.scoring.gives_advantages else unknown,
        "outcome_advantage": group.outcome_advantages,
        "process_advantage": group.process_advantages,
    }


def _parity_gap(
    response: Response, head: Row, behavior: np.ndarray, logprobs: np.ndarray | None
) -> float | None:
    """Return the maximum gap over the tokens that the learner's current version sampled."""
    if logprobs is None:
        return None
    gaps = np.abs(logprobs - behavior)
    version = (head["attempt"], head["step"])
    spans = [span for span in response.spans if (span.attempt, span.version) == version]
    parts = [gaps[span.start : span.end] for span in spans]
    return max((float(gap) for part in parts for gap in part[np.isfinite(part)]), default=None)


def _loss_mask(group: ScoredGroup) -> np.ndarray:
    """Return which tokens of a group samples learn from, [token] bool; empty if it is dropped."""
    rollout = group.graded.group
    if rollout is None or group.fate != USED:
        return np.zeros(0, dtype=bool)
    return np.repeat(group.has_loss, rollout.lengths) & rollout.policy_mask


def _spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the values where the mask is true, in their order, and NaN elsewhere."""
    spread = np.full(mask.shape, math.nan, dtype=np.float32)
    spread[mask] = values
    return spread


def _round_finite(value: float) -> float | None:
    """Round to the digits of a float32 column; None for NaN and infinity."""
    return float(np.float32(value)) if math.isfinite(value) else None


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values; None without one."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=np.float64)) if finite.size else None


def _parse_response(row: Row) -> Response:
    fields = {name: row.get(name) for name in Response.model_fields}
    fields["episode"] = json.loads(row["episode"]) if row["episode"] else None
    return Response.model_validate(fields)


def _parse_rollout(rows: Sequence[Row]) -> RolloutGroup:
    head = rows[0]
    token_ids = [token_id for row in rows for token_id in row["token_ids"]]
    logprobs = [logprob for row in rows for logprob in row["behavior_logprobs"]]
    sampled = np.array(logprobs, dtype=np.float32)
    policy_mask = np.isfinite(sampled)
    return RolloutGroup(
        request=RolloutRequest.model_validate_json(head["request"]),
        prompt_ids=np.array(head["prompt_ids"], dtype=np.int32),
        token_ids=np.array(token_ids, dtype=np.int32),
        behavior_logprobs=np.where(policy_mask, sampled, 0),
        own=None if policy_mask.all() else policy_mask,
        lengths=np.array([len(row["token_ids"]) for row in rows], dtype=np.int32),
        responses=tuple(map(_parse_response, rows)),
        begins_thinking=head["begins_thinking"],
        sampling_seconds=head["sampling_seconds"],
    )
