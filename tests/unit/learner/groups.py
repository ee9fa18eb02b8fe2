"""Graded groups, of the scores of their responses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from protocol.messages import FinishReason, Grade, Graded, GradedGroup, Score, Ungradable

from tests.builders import a_graded_group, a_group, a_request

UNREADABLE = Ungradable(reason="gold_not_parsable")
BROKEN = Ungradable(reason="episode_failed")


def grades(
    outcomes: Sequence[Score | float | None], process: Sequence[Score | float | None] = ()
) -> list[Grade]:
    """Of numbers or scores; None: an outcome that cannot be graded, and no process score."""
    return [
        Grade(
            outcome=a_score(UNREADABLE if outcome is None else outcome),
            process=None if score is None else a_score(score),
        )
        for outcome, score in zip_longest(outcomes, process)
    ]


def a_score(value: Score | float) -> Score:
    return value if isinstance(value, Graded | Ungradable) else Graded(value=value)


def graded(
    *outcomes: Score | float | None,
    process: Sequence[Score | float | None] = (),
    lengths: Sequence[int] | None = None,
    truncated: Sequence[int] = (),
    version: int = 0,
    **request_fields: Any,
) -> GradedGroup:
    request = a_request(group_size=len(outcomes), **request_fields)
    group = a_group(request, lengths or [3] * len(outcomes), version=version)
    cut = {"finish_reason": FinishReason.LENGTH}
    responses = tuple(
        response.model_copy(update=cut if index in truncated else {})
        for index, response in enumerate(group.responses)
    )
    group = group.model_copy(update={"responses": responses})
    return a_graded_group(group, grades=grades(outcomes, process))
