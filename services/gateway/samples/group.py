"""A group of samples as the REST surface shows it, with the text of every token."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from protocol.samples import TOKENIZER
from pydantic_core import to_json
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from services.gateway.samples.store import Row, Store

_DECIMALS = 6
_OF_GROUP = (
    *("purpose", "number", "step", "attempt", "fate", "failure", "created_at"),
    *("grading_seconds", "sampling_seconds"),
)
_NUMBERS = ("reward", "advantage", "outcome_advantage", "process_advantage")
_OF_TOKENS = ("behavior_logprobs", "logprobs", "entropies", "token_advantages")
_MOST_OPEN = 64  # tokens in a row that end within a character; decoding them takes quadratic time
log = logging.getLogger(__name__)


def group_json(store: Store, key: str) -> bytes:
    """A group as JSON, with every token of every response; NaN becomes null.

    Raises:
        Problem: 404 if there is none of this key.
    """
    rows, tokenizer = store.group(key), tokenizer_of(store.folder)
    head = to_json(_head(rows[0], tokenizer), inf_nan_mode="null")
    # One response after another, since making JSON lets no other thread run.
    responses = [
        to_json(_response(row, tokenizer), inf_nan_mode="null")
        for row in rows
        if row["index"] is not None
    ]
    return head[:-1] + b',"responses":[' + b",".join(responses) + b"]}"


def _head(row: Row, tokenizer: Tokenizer | None) -> Row:
    task, prompt = None, None
    if row["request"] is not None:
        task, prompt = json.loads(row["request"])["task"], row["prompt"]
        if tokenizer is not None:  # as the model saw it, with its special tokens
            prompt = tokenizer.decode(row["prompt_ids"].tolist(), skip_special_tokens=False)
    return {
        "id": row["key"],
        "object": "fine_tuning.job.sample_group",
        **{name: row[name] for name in _OF_GROUP},
        "task": task,
        "prompt": prompt,
    }


def _response(row: Row, tokenizer: Tokenizer | None) -> Row:
    return {
        "index": row["index"],
        "text": row["text"],
        "finish_reason": row["finish_reason"],
        "spans": row["spans"].tolist(),
        "grade": json.loads(row["grade"]) if row["grade"] else None,
        "episode": json.loads(row["episode"]) if row.get("episode") else None,
        **{name: _rounded(row[name]) for name in _NUMBERS},
        "tokens": _tokens(row, tokenizer),
        **{name: _rounded(row[name]) for name in _OF_TOKENS},
    }


def _tokens(row: Row, tokenizer: Tokenizer | None) -> list[str]:
    """Those of an episode with what stands between its turns, which is not in the text."""
    ids = row["token_ids"].tolist()
    if tokenizer is None or not row.get("episode"):
        return token_texts(tokenizer, ids, row["text"])
    pieces = _decoded(tokenizer, ids, skip_special_tokens=False)
    return pieces or token_texts(None, ids, row["text"])


def _rounded(values: Any) -> Any:
    """Short numbers: the digits that a float32 does not have are noise."""
    return None if values is None else np.round(np.float64(values), _DECIMALS).tolist()


def token_texts(tokenizer: Tokenizer | None, token_ids: Sequence[int], text: str) -> list[str]:
    """One piece of ``text`` per token, which make up the text one after another.

    A token that ends within a character has none, and the next one the whole character. Where the
    tokens' texts do not make up the text, the first piece is all of it.
    """
    pieces = _decoded(tokenizer, token_ids) if tokenizer is not None else []
    made = "".join(pieces)
    if made and text.startswith(made):  # what is missing is an unfinished character at the end
        return [*pieces[:-1], pieces[-1] + text[len(made) :]]
    return [text, *[""] * (len(token_ids) - 1)] if len(token_ids) else []


def _decoded(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True
) -> list[str]:
    stream, pieces, num_open = DecodeStream(skip_special_tokens=skip_special_tokens), [], 0
    for token_id in token_ids:
        try:
            piece = stream.step(tokenizer, token_id)
        except Exception:  # of no narrower type: the tokenizer cannot go on from these tokens
            return []
        num_open = 0 if piece else num_open + 1
        if num_open > _MOST_OPEN:
            return []
        pieces.append(piece or "")
    return pieces


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """The tokenizer of a sample store, if it has one that can be read."""
    path = folder / TOKENIZER
    try:
        return _tokenizer(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=2)
def _tokenizer(path: Path, _changed_ns: int) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # of no narrower type
        log.warning("%s is no tokenizer: %s; samples are shown without their tokens", path, error)
        return None
