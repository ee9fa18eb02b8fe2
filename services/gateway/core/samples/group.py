"""A group of samples as the REST API returns it, with the text of every token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from protocol.samples import TOKENIZER
from pydantic_core import to_json

from services.chassis.pool import Cause, NoWorkerError, Pool, Value
from services.gateway.core.samples import decoding
from services.gateway.core.samples.store import Row, Store
from services.gateway.errors import Problem

CPU_TIMEOUT_S = 10.0  # for a client's tokenizer and one response
NUM_DECIMALS = 6  # a float32 has no more digits
_GROUP_FIELDS = (
    "purpose",
    "number",
    "step",
    "attempt",
    "fate",
    "failure",
    "created_at",
    "grading_seconds",
    "sampling_seconds",
)
_RESPONSE_NUMBERS = ("reward", "advantage", "outcome_advantage", "process_advantage")
_TOKEN_NUMBERS = ("behavior_logprobs", "logprobs", "entropies", "token_advantages")
log = logging.getLogger(__name__)


async def group_json(store: Store, key: str, pool: Pool) -> bytes:
    """Return a group as JSON, with every token of every response; NaN becomes null.

    The tokenizer is a client's, so a worker of the ``pool`` decodes.

    Raises:
        Problem: 404 if there is no such group, 422 if the tokenizer exceeds its limits, 503 if the
            pool has no worker.
    """
    rows = await asyncio.to_thread(store.read_group, key)
    prompt, pieces = await _decode_group(pool, store.folder / TOKENIZER, rows)
    return await asyncio.to_thread(_encode_group, rows, prompt, pieces)


def _response_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a response; a failed group has none."""
    return [row for row in rows if row["index"] is not None]


async def _decode_group(
    pool: Pool, tokenizer: Path, rows: Sequence[Row]
) -> tuple[str | None, list[list[str]]]:
    """Return the text of the prompt and the pieces of each response, without a tokenizer empty."""
    responses = _response_rows(rows)
    if not tokenizer.exists():
        return None, [[] for _ in responses]
    decode = partial(_decode, pool, str(tokenizer), tokenizer.stat().st_mtime_ns)
    prompt = None
    if rows[0]["request"] is not None:
        # With special tokens, as the model reads it.
        prompt = "".join(await decode(rows[0]["prompt_ids"].tolist(), False)) or None
    return prompt, [await _decode_response(decode, row) for row in responses]


async def _decode_response(
    decode: Callable[[list[int], bool], Awaitable[list[str]]], row: Row
) -> list[str]:
    token_ids = row["token_ids"].tolist()
    plain = [] if row.get("episode") else await decode(token_ids, True)
    if plain and row["text"].startswith("".join(plain)):
        return plain
    pieces = await decode(token_ids, False)
    if plain and pieces and not plain[-1]:
        pieces[-1] = ""  # the special token that ends a response is not in its text
    return pieces


async def _decode(
    pool: Pool, tokenizer: str, changed_ns: int, token_ids: list[int], skip_special: bool
) -> list[str]:
    function = f"{decoding.__name__}:decode"
    arguments: tuple[Any, ...] = (tokenizer, changed_ns, token_ids, skip_special)
    try:
        outcome = await pool.run(function, *arguments, deadline_s=CPU_TIMEOUT_S)
    except NoWorkerError as error:
        raise Problem(503, f"the tokens cannot be decoded now: {error}; try again") from error
    if isinstance(outcome, Value):
        return cast("list[str]", outcome.value)
    if outcome.cause is Cause.ERROR:
        reason = f"no tokenizer: {outcome.detail}; samples are shown without their tokens"
        log.warning(reason, extra={"file": tokenizer})
        return []
    status = 503 if outcome.is_machine_fault else 422
    raise Problem(status, f"the tokenizer of the job's model: {outcome.cause}, {outcome.detail}")


def _encode_group(rows: Sequence[Row], prompt: str | None, pieces: Sequence[list[str]]) -> bytes:
    head = to_json(_group_object(rows[0], prompt), inf_nan_mode="null")
    # One response at a time, since encoding JSON blocks all threads.
    responses = [
        to_json(_response_object(row, response_pieces), inf_nan_mode="null")
        for row, response_pieces in zip(_response_rows(rows), pieces, strict=True)
    ]
    return head[:-1] + b',"responses":[' + b",".join(responses) + b"]}"


def _group_object(row: Row, prompt: str | None) -> Row:
    task = None
    if row["request"] is not None:
        task = json.loads(row["request"])["task"]
        prompt = row["prompt"] if prompt is None else prompt
    return {
        "id": row["key"],
        "object": "fine_tuning.job.sample_group",
        **{name: row[name] for name in _GROUP_FIELDS},
        "task": task,
        "prompt": prompt,
    }


def _response_object(row: Row, pieces: list[str]) -> Row:
    episode = row.get("episode")
    tokens = pieces
    # An episode also has tokens between its turns, which are not in the text.
    if not (pieces and episode):
        tokens = token_texts(pieces, len(row["token_ids"]), row["text"])
    return {
        "index": row["index"],
        "text": row["text"],
        "finish_reason": row["finish_reason"],
        "spans": row["spans"].tolist(),
        "grade": json.loads(row["grade"]) if row["grade"] else None,
        "episode": json.loads(episode) if episode else None,
        "tokens": tokens,
        **{name: _round(row[name]) for name in (*_RESPONSE_NUMBERS, *_TOKEN_NUMBERS)},
    }


def _round(values: Any) -> Any:
    return None if values is None else np.round(np.float64(values), NUM_DECIMALS).tolist()


def token_texts(pieces: Sequence[str], num_tokens: int, text: str) -> list[str]:
    """Split ``text`` into one part per token.

    A token that ends within a character has none, and the next one the whole character. If the
    pieces do not make up the text, its first token has all of it.
    """
    decoded = "".join(pieces)
    if decoded and text.startswith(decoded):
        # An unfinished character may follow.
        return [*pieces[:-1], pieces[-1] + text[len(decoded) :]]
    return [text, *[""] * (num_tokens - 1)] if num_tokens else []
