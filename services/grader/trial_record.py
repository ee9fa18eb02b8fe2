"""What a trial of a grader tells besides scores: tokens spent, and failures in words."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field

from protocol.tasks import shown

_MAX_CHARS = 2_000


@dataclass
class TrialRecord:
    tokens: Counter[str] = field(default_factory=Counter)  # by model
    details: dict[str, str] = field(default_factory=dict)  # by the reason of a score


_OF_JOBS = TrialRecord()  # which nobody reads: metrics and log have that
_RECORD = ContextVar("record", default=_OF_JOBS)


def recorded() -> TrialRecord:
    """The record of what happens from here on in this task, and in those that it starts."""
    _RECORD.set(record := TrialRecord())
    return record


def record_tokens(model: str, count: int) -> None:
    _RECORD.get().tokens[model] += count


def record_failure(reason: str, words: str) -> None:
    _RECORD.get().details[reason] = shown(words)[:_MAX_CHARS]
