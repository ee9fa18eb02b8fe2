"""The record of a trial, for the client that tests a reward: spent tokens, and error messages."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field

from protocol.tasks import escape_surrogates

_MAX_CHARS = 2_000


@dataclass
class TrialRecord:
    tokens: Counter[str] = field(default_factory=Counter)  # by model
    details: dict[str, str] = field(default_factory=dict)  # by the reason of a score


# Jobs share a record that is never read: they have metrics and the log.
_RECORD = ContextVar("record", default=TrialRecord())  # noqa: B039


def start_record() -> TrialRecord:
    """Start a record for this task and the tasks that it starts."""
    record = TrialRecord()
    _RECORD.set(record)
    return record


def record_tokens(model: str, count: int) -> None:
    _RECORD.get().tokens[model] += count


def record_failure(reason: str, message: str) -> None:
    _RECORD.get().details[reason] = escape_surrogates(message)[:_MAX_CHARS]
