"""What was asked for and could not be had: scores, or whole groups. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.messages import GradedGroup, Ungradable
from protocol.recipe import Purpose, Recipe

from services.learner.training.scoring import failure_kind

_LONGEST_EXAMPLE = 500
_UNWORKABLE = "unworkable"  # how failures begin that would be the same in every worker


class NothingCanWork(RuntimeError):
    """The workers can work on none of the job's groups; the text has their words."""


@dataclass(frozen=True)
class Lost:
    """The share of scores or groups that was lost, how many by reason, and one reason in full."""

    kind: Literal["ungradable", "failed"]
    share: float
    reasons: Mapping[str, int]
    example: str = ""


def too_much_lost(
    groups: Sequence[GradedGroup], recipe: Recipe, accepted: int
) -> list[tuple[Lost, float]]:
    """What was lost of a purpose's groups, each with the share that is allowed, if it is more.

    Args:
        accepted: the user has accepted what was lost of the groups below this number.
    """
    lost = [(failed(groups, accepted), recipe.training.max_failed)]
    if any(group.purpose is not Purpose.EVAL for group in groups):  # its result tells them
        lost.append((ungraded(groups, accepted), recipe.reward.max_ungradable))
    return [(part, most) for part, most in lost if part.share > most]


def why_none_can_work(groups: Sequence[GradedGroup], accepted: int) -> str | None:
    """What the workers said of the last of these groups if they could work on none, and the remedy.

    Args:
        accepted: the user has accepted what became of the groups below this number.
    """
    said = [group.failure for group in groups if group.number >= accepted and group.failure]
    if len(said) < len(groups) or any(failure_kind(words) != _UNWORKABLE for words in said):
        return None
    example = said[-1].removeprefix(f"{_UNWORKABLE}: ")[:_LONGEST_EXAMPLE]
    return f"{example}; mend that, or resume the job, which goes on without them"


def failed(groups: Sequence[GradedGroup], accepted: int = 0) -> Lost:
    """The groups that failed; those with a number below ``accepted`` count as if they had not."""
    failures = [group.failure for group in groups if group.failure and group.number >= accepted]
    share, reasons = len(failures) / max(1, len(groups)), Counter(map(failure_kind, failures))
    return Lost("failed", share, reasons, failures[-1][:_LONGEST_EXAMPLE] if failures else "")


def ungraded(groups: Sequence[GradedGroup], accepted: int = 0) -> Lost:
    """Scores that could not be given; groups with a number below ``accepted`` count as graded."""
    asked = [
        (group.number, score)
        for group in groups
        for grade in group.grades
        for score in (grade.outcome, grade.process)
        if score is not None
    ]
    reasons = Counter(
        score.reason
        for number, score in asked
        if isinstance(score, Ungradable) and number >= accepted
    )
    return Lost("ungradable", reasons.total() / max(1, len(asked)), reasons)


def in_words(reasons: Mapping[str, int]) -> str:
    """How many were lost by reason."""
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
