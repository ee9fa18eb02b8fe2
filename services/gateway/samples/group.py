"""A group of samples as the REST surface shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json
from tokenizers import Tokenizer

from services.gateway.samples.pieces import text_pieces
from services.gateway.samples.store import Row

_DECIMALS = 6
_OF_GROUP = (
    *("purpose", "number", "step", "attempt", "fate", "failure", "created_at"),
    *("grading_seconds", "sampling_seconds"),
)
_NUMBERS = ("reward", "advantage", "outcome_advantage", "process_advantage")
_OF_TOKENS = ("behavior_logprobs", "logprobs", "entropies", "token_advantages")


def group_json(rows: Sequence[Row], tokenizer: Tokenizer | None) -> bytes:
    """A group as JSON, with every token of every response; NaN becomes null."""
    head = _json(_head(rows[0], tokenizer))
    # One response after another, since making JSON lets no other thread run.
    responses = [_json(_response(row, tokenizer)) for row in rows if row["index"] is not None]
    return head[:-1] + b',"responses":[' + b",".join(responses) + b"]}"


def _json(value: Row) -> bytes:
    return to_json(value, inf_nan_mode="null")


def _head(row: Row, tokenizer: Tokenizer | None) -> Row:
    task = None if row["request"] is None else json.loads(row["request"])["task"]
    return {
        "id": row["key"],
        "object": "fine_tuning.job.sample_group",
        **{name: row[name] for name in _OF_GROUP},
        "task": task,
        "prompt": task and _prompt(row, tokenizer),
    }


def _prompt(row: Row, tokenizer: Tokenizer | None) -> str | None:
    """As the model saw it, with its special tokens."""
    if tokenizer is None:
        return row["prompt"]
    return tokenizer.decode(row["prompt_ids"].tolist(), skip_special_tokens=False)


def _response(row: Row, tokenizer: Tokenizer | None) -> Row:
    return {
        "index": row["index"],
        "text": row["text"],
        "finish_reason": row["finish_reason"],
        "spans": row["spans"].tolist(),
        "grade": json.loads(row["grade"]),
        **{name: _rounded(row[name]) for name in _NUMBERS},
        "tokens": text_pieces(tokenizer, row["token_ids"].tolist(), row["text"]),
        **{name: _rounded(row[name]) for name in _OF_TOKENS},
    }


def _rounded(values: Any) -> Any:
    """Short ones: the digits that a float32 does not have are noise."""
    return None if values is None else np.round(np.float64(values), _DECIMALS).tolist()
