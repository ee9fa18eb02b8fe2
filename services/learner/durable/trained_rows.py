"""The rows of the sample store for what a client's step trained on.

A client sends sequences of tokens, and neither tasks nor grades. Those with the same prompt make a
group, and what is unknown is null.
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

MOST_SEQUENCES = 256  # of a step that are kept, the first ones


def data_rows(operation: Operation, logprobs: np.ndarray) -> Iterator[Row]:
    """What the row of each datum has of its own; the response begins with the first weight."""
    assert operation.data is not None
    data = operation.data
    columns = (data.weights, data.behavior_logprobs, data.input_ids, data.targets, logprobs)
    ends = data.lengths.cumsum()
    for start, end in zip(ends - data.lengths, ends, strict=True):
        weights, behavior, inputs, targets, learned = (column[start:end] for column in columns)
        is_own = (weights != 0) | (behavior != 0)
        first = int(np.argmax(weights != 0 if weights.any() else is_own))
        row: Row = {
            "prompt_ids": inputs[: first + 1],
            "token_ids": targets[first:],
            "spans": [],
            "has_loss": bool(weights.any()),
            "length": int(is_own[first:].sum()),
            "logprobs": np.where(is_own, learned, np.nan)[first:],
        }
        if operation.loss != "cross_entropy" and is_own.any():
            row |= _of_policy(*(np.where(is_own, of, np.nan)[first:] for of in (weights, behavior)))
        yield row


def _of_policy(advantages: np.ndarray, behavior: np.ndarray) -> Row:
    """What else is known of a response that a policy loss trains on; NaN where not its own."""
    lowest, highest = np.nanmin(advantages), np.nanmax(advantages)
    return {
        "advantage": float(lowest) if lowest == highest else None,
        "token_advantage": float(np.nanmean(advantages, dtype=float)),
        "token_advantages": advantages,
        "behavior_logprobs": behavior,
        "surprise": 0.0 - float(np.nanmean(behavior, dtype=float)),
    }


def rows_of_data(
    rows: Sequence[Row],
    texts: Sequence[Sequence[str]],
    *,
    attempt: int,
    step: int,
    created_at: float,
) -> Iterator[list[Row]]:
    """Whole rows, by prompts; ``texts`` has for each the text of its prompt and its response."""
    groups: dict[bytes, list[Row]] = {}
    for row, (prompt, response) in zip(rows, texts, strict=True):
        shown = {**row, "prompt": prompt or "(no text)", "text": response}
        groups.setdefault(row["prompt_ids"].tobytes(), []).append(shown)
    for place, (prompt, members) in enumerate(groups.items()):
        task = Task(id=sha256(prompt).hexdigest()[:12], prompt=members[0]["prompt"])
        number = MOST_SEQUENCES * step + place
        head: Row = {"attempt": attempt, "step": step, "created_at": created_at}
        head |= {"key": group_key(Purpose.TRAIN, number), "purpose": "train", "number": number}
        head |= {"fate": USED, "task_id": task.id}
        head["request"] = json.dumps({"task": task.model_dump()})
        yield [{**head, **row, "index": index} for index, row in enumerate(members)]
