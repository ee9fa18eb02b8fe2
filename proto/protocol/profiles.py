"""Profiles of task files: how often a model solves each task. One JSON object a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

_BARS = 10  # of the histogram
_BAR_CHARS = 40


class ProfileError(ValueError):
    """A profile is damaged; the text names its file and the remedy."""


@dataclass(frozen=True)
class TaskProfile:
    """The responses of a model to one task; ``pass_rate`` is the share of correct ones."""

    id: str
    pass_rate: float
    graded: int
    mean_length: float | None  # in tokens
    truncated: float | None  # the share of responses


def profile_path(tasks: Path) -> Path:
    return tasks.with_suffix(".profile.jsonl")


def read_profile(tasks: Path) -> list[TaskProfile]:
    """Read the profile of a task file; empty if there is none.

    Raises:
        ProfileError: if it is damaged.
    """
    path = profile_path(tasks)
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [TaskProfile(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise ProfileError(f"{path}: damaged; remove it, and profile the tasks again") from error


def histogram(profiles: Sequence[TaskProfile]) -> Iterator[str]:
    """Yield a line for each tenth of the pass rates, and for 0 and 1, which teach nothing."""
    labels = ["0", *(f"to {place / _BARS:.1f}" for place in range(1, _BARS + 1)), "1"]
    counts: Counter[int] = Counter()
    for profile in profiles:
        is_perfect = profile.pass_rate == 1
        counts[_BARS + 1 if is_perfect else ceil(profile.pass_rate * _BARS)] += 1
    largest = max(counts.values(), default=1)
    yield "pass rate   tasks"
    for place, label in enumerate(labels):
        count = counts[place]
        bar = "█" * round(_BAR_CHARS * count / largest)
        yield f"{label:>9} {count:7,} {bar}".rstrip()
