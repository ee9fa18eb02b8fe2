"""What is told beside a score while a grader is tried: tokens spent, and failures in words.

Whoever grades a job notes nothing: its metrics and its log have that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from protocol.encodable import shown

_MAX_CHARS = 2_000


@dataclass
class Notes:
    """What one trial was told."""

    tokens: Counter[str] = field(default_factory=Counter)  # by model
    details: dict[str, str] = field(default_factory=dict)  # by the reason of the score


_NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def noted() -> Iterator[Notes]:
    """Notes of whatever happens in the body, and in the tasks that it starts."""
    token = _NOTES.set(notes := Notes())
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def note_tokens(model: str, count: int) -> None:
    """A model has spent so many tokens."""
    if (notes := _NOTES.get()) is not None:
        notes.tokens[model] += count


def note_failure(reason: str, words: str) -> None:
    """Why a score has this reason."""
    if (notes := _NOTES.get()) is not None:
        notes.details[reason] = shown(words)[:_MAX_CHARS]
