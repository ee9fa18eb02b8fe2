"""The rows of the sample store for the data of a client's step.

A client sends sequences of tokens without tasks or grades. Sequences with the same prompt make a
group, and unknown columns are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np
from protocol.messages import Task, group_key
from protocol.operations import Operation
from protocol.recipe import Purpose
from protocol.samples import USED

from services.learner.durable.sample_rows import Row

MAX_SEQUENCES = 256  # of a step, the first ones; people read a few of them


def datum_rows(operation: Operation, logprobs: np.ndarray) -> Iterator[Row]:
    """Return the columns of each datum; the response begins with the first nonzero weight."""
    data = operation.data
    assert data is not None
    ends = data.lengths.cumsum()
    for start, end in zip(ends - data.lengths, ends, strict=True):
        weights = data.weights[start:end]
        behavior = data.behavior_logprobs[start:end]
        is_response = (weights != 0) | (behavior != 0)
        first = int(np.argmax(weights != 0 if weights.any() else is_response))
        row: Row = {
            "prompt_ids": data.input_ids[start : start + first + 1],
            "token_ids": data.targets[start + first : end],
            "spans": [],
            "in_loss": bool(weights.any()),
            "length": int(is_response[first:].sum()),
            "logprobs": np.where(is_response, logprobs[start:end], np.nan)[first:],
        }
        if operation.loss != "cross_entropy" and is_response.any():
            advantages = np.where(is_response, weights, np.nan)[first:]
            row |= _policy_columns(advantages, np.where(is_response, behavior, np.nan)[first:])
        yield row


def _policy_columns(advantages: np.ndarray, behavior: np.ndarray) -> Row:
    """Return the columns for a policy loss; the arrays have NaN outside the response."""
    is_constant = np.nanmin(advantages) == np.nanmax(advantages)
    return {
        "advantage": float(np.nanmin(advantages)) if is_constant else None,
        "token_advantage": float(np.nanmean(advantages, dtype=float)),
        "token_advantages": advantages,
        "behavior_logprobs": behavior,
        "surprise": 0.0 - float(np.nanmean(behavior, dtype=float)),
    }


def build_data_rows(
    rows: Sequence[Row],
    texts: Sequence[Sequence[str]],
    *,
    attempt: int,
    step: int,
    created_at: float,
) -> Iterator[list[Row]]:
    """Return whole rows by prompt; ``texts`` has each row's texts of prompt and response."""
    groups: dict[bytes, list[Row]] = {}
    for row, (prompt, response) in zip(rows, texts, strict=True):
        row = {**row, "prompt": prompt or "(no text)", "text": response}
        groups.setdefault(row["prompt_ids"].tobytes(), []).append(row)
    for place, (prompt_bytes, members) in enumerate(groups.items()):
        task = Task(id=sha256(prompt_bytes).hexdigest()[:12], prompt=members[0]["prompt"])
        number = MAX_SEQUENCES * step + place
        head: Row = {
            "attempt": attempt,
            "step": step,
            "created_at": created_at,
            "key": group_key(Purpose.TRAIN, number),
            "purpose": "train",
            "number": number,
            "fate": USED,
            "task_id": task.id,
            "request": json.dumps({"task": task.model_dump()}),
        }
        yield [{**head, **row, "index": index} for index, row in enumerate(members)]
