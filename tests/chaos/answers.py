"""What the workers answer: only the request decides.

Everything around these answers is the product. What is learned therefore depends on nothing but
the recipe, unless a fault of a machine has lost, repeated, changed or swapped something.
"""

from __future__ import annotations

import random

import numpy as np
from protocol.messages import (
    FinishReason,
    Grade,
    Graded,
    GradedGroup,
    Response,
    RolloutGroup,
    RolloutRequest,
    VersionSpan,
)
from protocol.recipe import Purpose

_STATE = "hash"
_PACE_S = 0.5


def group_for(request: RolloutRequest) -> RolloutGroup:
    """The answer to a request; its seed decides all of it.

    The spans name the step that the request was asked for, whichever version is loaded: a group
    that came late would be dropped as surplus, and then the rest would depend on the time.
    """
    chance = random.Random(request.seed)
    lengths = [chance.randint(1, 12) for _ in range(request.group_size)]
    return RolloutGroup(
        request=request,
        prompt_ids=np.array([chance.randrange(1000) for _ in range(3)]),
        token_ids=np.array([chance.randrange(1000) for _ in range(sum(lengths))]),
        behavior_logprobs=np.array([-chance.random() for _ in range(sum(lengths))]),
        lengths=np.array(lengths),
        responses=tuple(_response(request, length, chance) for length in lengths),
        sampling_seconds=0.0,
    )


def graded(group: RolloutGroup) -> GradedGroup:
    """The grades of a group; two in seven training groups have nothing to teach."""
    request = group.request
    chance = random.Random(-request.seed)
    outcomes = [float(index % 2) for index in range(request.group_size)]
    chance.shuffle(outcomes)
    if request.purpose is Purpose.TRAIN and request.number % 7 in {2, 5}:
        outcomes = [0.0] * request.group_size
    return GradedGroup(
        purpose=request.purpose,
        number=request.number,
        group=group,
        grades=tuple(
            Grade(
                outcome=Graded(value=outcome),
                process=Graded(value=round(chance.random(), 3)) if outcome else None,
            )
            for outcome in outcomes
        ),
    )


def _response(request: RolloutRequest, length: int, chance: random.Random) -> Response:
    span = VersionSpan(attempt=request.attempt, version=request.step, start=0, end=length)
    return Response(
        text=f"{request.key} {chance.randrange(1000)}",
        finish_reason=FinishReason.STOP,
        spans=(span,),
    )
