"""The rows of the sample store: what a step's groups and their responses came to. Pure.

A row is a response; what holds for its group stands in each of the group's rows. A group that
failed has one row, in which everything about a response is null.
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
        # of the group
        "key": pa.string(),
        "purpose": pa.string(),
        "number": pa.int64(),
        "attempt": pa.int64(),
        "step": pa.int64(),  # done when it was used or dropped; of a pretrain group the critic's
        "fate": pa.string(),  # `USED`, or why it was dropped
        "failure": pa.string(),
        "created_at": pa.float64(),  # seconds since 1970
        "grading_seconds": pa.float64(),
        "sampling_seconds": pa.float64(),
        "task_id": pa.string(),  # "" if the group failed
        "prompt": pa.string(),  # of the task, unless that has messages
        "request": pa.string(),  # JSON, with the whole task
        "prompt_ids": pa.list_(pa.int32()),
        "begins_thinking": pa.bool_(),  # null in rows of older releases, as good as false
        # of the response
        "index": pa.int64(),
        "text": pa.string(),
        "finish_reason": pa.string(),
        "spans": pa.list_(_SPAN),  # which version sampled which tokens
        "episode": pa.string(),  # JSON, of a response that took several turns
        "grade": pa.string(),  # JSON, with marks and comments
        "accuracy": pa.float64(),  # null if it could not be graded
        "process": pa.float64(),
        "has_loss": pa.bool_(),  # whether the step trained on it
        "reward": pa.float32(),  # which the advantage compares; null too where it leaves one out
        "advantage": pa.float32(),  # of all its tokens; null where a critic estimates it
        "outcome_advantage": pa.float32(),  # null unless the advantage has such a part
        "process_advantage": pa.float32(),  # likewise, before its weight
        "token_advantage": pa.float64(),  # the mean of those that its tokens trained with
        "length": pa.int64(),  # tokens of the policy's own
        "truncated": pa.bool_(),
        "surprise": pa.float64(),  # nats per token: the mean of -log p under the sampler
        "parity_gap": pa.float64(),  # nats: the largest of |learner - sampler| at equal weights
        # of its tokens; NaN for one, and null for all, of which the learner computed nothing
        "token_ids": pa.list_(pa.int32()),
        # nats, of the sampler; NaN for a token of a tool or an environment, as in all that follow
        "behavior_logprobs": pa.list_(pa.float32()),
        "logprobs": pa.list_(pa.float32()),  # nats, of the learner before the step's first update
        "entropies": pa.list_(pa.float32()),  # nats
        "token_advantages": pa.list_(pa.float32()),  # that were trained with
    }
)


def rows_of(
    groups: Sequence[ScoredGroup],
    tokens: Mapping[str, np.ndarray],
    *,
    attempt: int,
    step: int,
    created_at: float,
) -> Iterator[list[Row]]:
    """The rows of each group that a step used or dropped.

    Args:
        tokens: what the step measured for each own token of its samples, in their order, by the
            names of the columns.
    """
    ends = np.cumsum([_tokens_in_loss(group).sum() for group in groups], dtype=int)
    parts = {name: np.split(values, ends) for name, values in tokens.items()}
    for place, group in enumerate(groups):
        whose = {"attempt": attempt, "step": step, "fate": group.fate, "created_at": created_at}
        has_loss, measured = _tokens_in_loss(group), parts if group.fate == USED else {}
        of_tokens = {name: _spread(values[place], has_loss) for name, values in measured.items()}
        head = whose | _of_group(group.graded)
        yield [head | row for row in _responses(group, whose, of_tokens)] or [head]


def graded_of(rows: Sequence[Row]) -> GradedGroup:
    head = rows[0]
    group = None if head["request"] is None else _rollout_of(rows)
    failure = None
    if head["failure"] is not None:
        kind = FailureKind(head["fate"])
        failure = GroupFailure(kind=kind, message=head["failure"].removeprefix(f"{kind}: "))
    return GradedGroup(
        purpose=head["purpose"],
        number=head["number"],
        group=group,
        grades=tuple(Grade.model_validate_json(row["grade"]) for row in rows if group is not None),
        failure=failure,
        grading_seconds=head["grading_seconds"],
    )


def read_groups(path: Path) -> list[list[Row]]:
    """The rows of each group of a step.

    Raises:
        OSError: naming the file if it cannot be read.
    """
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise OSError(f"{path} cannot be read: {error}") from error
    return [list(group) for _, group in groupby(rows, key=lambda row: row["key"])]


def write_groups(path: Any, groups: Iterable[list[Row]], batch_tokens: int = 2**20) -> None:
    """Write the rows of a step, never more than about ``batch_tokens`` at once.

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


def _of_group(graded: GradedGroup) -> Row:
    head: Row = {
        "key": graded.key,
        "purpose": graded.purpose.value,
        "number": graded.number,
        "failure": graded.failure and str(graded.failure),
        "grading_seconds": graded.grading_seconds,
        "task_id": "",
    }
    if (group := graded.group) is not None:
        head |= {
            "sampling_seconds": group.sampling_seconds,
            "task_id": group.request.task.id,
            "prompt": group.request.task.prompt,
            "request": group.request.model_dump_json(),
            "prompt_ids": group.prompt_ids,
            "begins_thinking": group.begins_thinking,
        }
    return head


def _responses(group: ScoredGroup, whose: Row, tokens: Mapping[str, np.ndarray]) -> Iterator[Row]:
    if (rollout := group.graded.group) is None:
        return
    values = _values(group)
    trains = group.fate == USED and group.graded.purpose is not Purpose.EVAL
    sampled = np.where(rollout.is_own, rollout.behavior_logprobs, math.nan)
    lengths = rollout.own_lengths.tolist()
    for index, (start, end) in enumerate(rollout.bounds()):
        response, grade = rollout.responses[index], group.graded.grades[index]
        behavior = sampled[start:end]
        measured = {name: of_group[start:end] for name, of_group in tokens.items()}
        yield {
            "index": index,
            "text": response.text,
            "finish_reason": response.finish_reason.value,
            "spans": [span.model_dump() for span in response.spans],
            "episode": response.episode.model_dump_json() if response.episode else None,
            "grade": grade.model_dump_json(),
            "accuracy": grade.accuracy,
            "process": grade.process_score,
            "has_loss": trains and bool(group.has_loss[index]),
            **{name: _known(of_group[index]) for name, of_group in values.items()},
            "token_advantage": _mean(measured.get("token_advantages", behavior[:0])),
            "length": lengths[index],
            "truncated": response.finish_reason is FinishReason.LENGTH,
            "surprise": 0.0 - (_mean(behavior) or 0.0),
            "parity_gap": _parity_gap(response, whose, behavior, measured.get("logprobs")),
            "token_ids": rollout.token_ids[start:end],
            "behavior_logprobs": behavior,
            **measured,
        }


def _values(group: ScoredGroup) -> dict[str, np.ndarray]:
    """What the recipe makes of each response's grade, [group]; nothing of an evaluation's."""
    unknown = np.full(len(group.has_loss), math.nan)
    is_paid = group.graded.purpose is not Purpose.EVAL
    return {
        "reward": group.rewards if is_paid else unknown,
        "advantage": group.advantages if group.scoring.gives_advantages else unknown,
        "outcome_advantage": group.outcome_advantages,
        "process_advantage": group.process_advantages,
    }


def _parity_gap(
    response: Response, whose: Row, behavior: np.ndarray, logprobs: np.ndarray | None
) -> float | None:
    """The largest gap over the tokens that the learner's own version sampled."""
    gaps = [
        np.abs(logprobs - behavior)[span.start : span.end]
        for span in response.spans
        if logprobs is not None
        and (span.attempt, span.version) == (whose["attempt"], whose["step"])
    ]
    known = [float(gap) for part in gaps for gap in part[np.isfinite(part)]]
    return max(known, default=None)


def _tokens_in_loss(group: ScoredGroup) -> np.ndarray:
    """Which tokens of a group samples learn from, [token] bool; none of one that is dropped."""
    rollout = group.graded.group
    if rollout is None or group.fate != USED:
        return np.zeros(0, dtype=bool)
    return np.repeat(group.has_loss, rollout.lengths) & rollout.is_own


def _spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The values where the mask is true, in their order, and NaN elsewhere."""
    spread = np.full(mask.shape, math.nan, dtype=np.float32)
    spread[mask] = values
    return spread


def _known(value: float) -> float | None:
    """With the digits that the column keeps."""
    return float(np.float32(value)) if math.isfinite(value) else None


def _mean(values: np.ndarray) -> float | None:
    """Of those that are finite; None if none is."""
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if known.size else None


def _response_of(row: Row) -> Response:
    episode = row.get("episode")  # rows of older releases do not tell
    told = {name: row.get(name) for name in Response.model_fields}
    return Response.model_validate(told | {"episode": json.loads(episode) if episode else None})


def _rollout_of(rows: Sequence[Row]) -> RolloutGroup:
    head = rows[0]
    sampled = np.array([p for row in rows for p in row["behavior_logprobs"]], dtype=np.float32)
    is_own = np.isfinite(sampled)
    return RolloutGroup(
        request=RolloutRequest.model_validate_json(head["request"]),
        prompt_ids=np.array(head["prompt_ids"], dtype=np.int32),
        token_ids=np.array([t for row in rows for t in row["token_ids"]], dtype=np.int32),
        behavior_logprobs=np.where(is_own, sampled, 0),
        own=None if is_own.all() else is_own,
        lengths=np.array([len(row["token_ids"]) for row in rows], dtype=np.int32),
        responses=tuple(map(_response_of, rows)),
        begins_thinking=bool(head.get("begins_thinking")),
        sampling_seconds=head["sampling_seconds"],
    )
