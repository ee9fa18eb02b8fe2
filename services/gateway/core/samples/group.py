"""A group of samples as the REST surface shows it, with the text of every token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from protocol.samples import TOKENIZER
from pydantic_core import to_json

from services.chassis.pool import Cause, NoWorkerError, Pool, Value
from services.gateway.core.samples import decoding
from services.gateway.core.samples.store import Row, Store
from services.gateway.errors import Problem

_DECIMALS = 6
_OF_GROUP = (
    *("purpose", "number", "step", "attempt", "fate", "failure", "created_at"),
    *("grading_seconds", "sampling_seconds"),
)
_NUMBERS = ("reward", "advantage", "outcome_advantage", "process_advantage")
_OF_TOKENS = ("behavior_logprobs", "logprobs", "entropies", "token_advantages")
_CPU_S = 10.0  # that a client's tokenizer may take for a response
log = logging.getLogger(__name__)


async def group_json(store: Store, key: str, pool: Pool) -> bytes:
    """A group as JSON, with every token of every response; NaN becomes null.

    The tokenizer is a client's, so a worker of the ``pool`` decodes.

    Raises:
        Problem: 404 if there is none of this key, 422 if the tokenizer takes too much, 503 if no
            worker can be had.
    """
    rows = await asyncio.to_thread(store.group, key)
    prompt, pieces = await _decode(pool, store.folder / TOKENIZER, rows)
    return await asyncio.to_thread(_encode_group, rows, prompt, pieces)


async def _decode(
    pool: Pool, tokenizer: Path, rows: Sequence[Row]
) -> tuple[str | None, list[list[str]]]:
    """The text of the prompt, and the pieces of each row; nothing without a tokenizer."""
    shown = [row for row in rows if row["index"] is not None]
    if not tokenizer.exists():
        return None, [[] for _ in shown]
    file = str(tokenizer), tokenizer.stat().st_mtime_ns
    prompt = None
    if rows[0]["request"] is not None:  # as the model saw it, with its special tokens
        prompt = "".join(await _pieces(pool, *file, rows[0]["prompt_ids"].tolist(), False)) or None
    return prompt, [await _pieces_of(pool, row, *file) for row in shown]


async def _pieces_of(pool: Pool, row: Row, *file: Any) -> list[str]:
    ids = row["token_ids"].tolist()
    plain = [] if row.get("episode") else await _pieces(pool, *file, ids, True)
    if plain and row["text"].startswith("".join(plain)):
        return plain
    whole = await _pieces(pool, *file, ids, False)
    # The special token that ends a response is not in its text.
    return [*whole[:-1], ""] if plain and whole and not plain[-1] else whole


async def _pieces(pool: Pool, *args: Any) -> list[str]:
    try:
        outcome = await pool.run(f"{decoding.__name__}:pieces", *args, deadline_s=_CPU_S)
    except NoWorkerError as error:
        raise Problem(503, f"the tokens cannot be decoded now: {error}; try again") from error
    if isinstance(outcome, Value):
        return cast("list[str]", outcome.value)
    if outcome.cause is Cause.ERROR:
        why = f"no tokenizer: {outcome.detail}; samples are shown without their tokens"
        log.warning(why, extra={"file": args[0]})
        return []
    status = 503 if outcome.is_machine_fault else 422
    raise Problem(status, f"the tokenizer of the job's model: {outcome.cause}, {outcome.detail}")


def _encode_group(rows: Sequence[Row], prompt: str | None, pieces: Sequence[list[str]]) -> bytes:
    head = to_json(_head(rows[0], prompt), inf_nan_mode="null")
    # One response after another, since making JSON lets no other thread run.
    shown = (row for row in rows if row["index"] is not None)
    responses = [
        to_json(_response(row, own), inf_nan_mode="null")
        for row, own in zip(shown, pieces, strict=True)
    ]
    return head[:-1] + b',"responses":[' + b",".join(responses) + b"]}"


def _head(row: Row, prompt: str | None) -> Row:
    task = None
    if row["request"] is not None:
        task = json.loads(row["request"])["task"]
        prompt = row["prompt"] if prompt is None else prompt
    return {
        "id": row["key"],
        "object": "fine_tuning.job.sample_group",
        **{name: row[name] for name in _OF_GROUP},
        "task": task,
        "prompt": prompt,
    }


def _response(row: Row, pieces: list[str]) -> Row:
    return {
        "index": row["index"],
        "text": row["text"],
        "finish_reason": row["finish_reason"],
        "spans": row["spans"].tolist(),
        "grade": json.loads(row["grade"]) if row["grade"] else None,
        "episode": json.loads(row["episode"]) if row.get("episode") else None,
        **{name: _rounded(row[name]) for name in _NUMBERS},
        "tokens": _tokens(row, pieces),
        **{name: _rounded(row[name]) for name in _OF_TOKENS},
    }


def _tokens(row: Row, pieces: list[str]) -> list[str]:
    """Those of an episode with what stands between its turns, which is not in the text."""
    if pieces and row.get("episode"):
        return pieces
    return token_texts(pieces, len(row["token_ids"]), row["text"])


def _rounded(values: Any) -> Any:
    """Short numbers: the digits that a float32 does not have are noise."""
    return None if values is None else np.round(np.float64(values), _DECIMALS).tolist()


def token_texts(pieces: Sequence[str], num_tokens: int, text: str) -> list[str]:
    """One piece of ``text`` per token, which make up the text one after another.

    A token that ends within a character has none, and the next one the whole character. Where the
    tokens' texts do not make up the text, the first piece is all of it.
    """
    made = "".join(pieces)
    if made and text.startswith(made):  # what is missing is an unfinished character at the end
        return [*pieces[:-1], pieces[-1] + text[len(made) :]]
    return [text, *[""] * (num_tokens - 1)] if num_tokens else []
