"""Warnings about prompts and parity name only counted and compared numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol.messages import Grade, Graded, GradedGroup, Score, Ungradable

from services.learner.durable.progress import Progress
from services.learner.job.limits import check_lost
from services.learner.job.parity import Parity
from services.learner.training.samples import Measured
from tests.builders import a_graded_group, a_group, a_recipe, a_request

pytestmark = pytest.mark.anyio
NO_ANSWER = Graded(value=0, reason="no_answer")
WRONG = Graded(value=0, reason="wrong")


class Listener:
    """An attempt and its control that record the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.recipe = a_recipe(training={"max_failed": 1.0}, reward={"max_ungradable": 1.0})
        self.number = 1

    async def warn(self, event_id: str, message: str, **values: Any) -> None:
        self.warnings.append(message)

    async def pause(self, why: str) -> None:
        pass


def a_whole(*outcomes: Score) -> GradedGroup:
    group = a_group(a_request(group_size=len(outcomes)))
    return a_graded_group(group, grades=[Grade(outcome=outcome) for outcome in outcomes])


@pytest.mark.parametrize(
    ("outcomes", "messages"),
    [
        ([NO_ANSWER] * 3, ["step 0: none of 3 responses had a readable answer; check the prompt"]),
        ([NO_ANSWER, Ungradable(reason="timeout")], ["step 0: none of 1 responses"]),
        ([NO_ANSWER, WRONG], []),
        ([Ungradable(reason="timeout")], []),
    ],
)
async def test_a_job_tells_where_no_response_has_a_readable_answer(
    outcomes: list[Score], messages: list[str]
) -> None:
    listener = Listener()
    learning = {"attempt": listener, "recipe": listener.recipe, "progress": Progress()}
    await check_lost(cast(Any, SimpleNamespace(**learning)), [a_whole(*outcomes)], "step 0")
    assert [
        heard[: len(start)] for heard, start in zip(listener.warnings, messages, strict=True)
    ] == messages


@pytest.mark.parametrize(
    ("temperature", "version", "probes", "named"),
    [
        (1.0, 0, [], []),
        (1.0, 0, [1e-6], ["the probes agree"]),
        (0.7, 0, [], ["temperature 0.7"]),
        (1.0, 3, [], ["KV cache"]),
    ],
)
async def test_sampled_tokens_that_differ_pause_for_causes_that_can_be(
    temperature: float, version: int, probes: list[float], named: list[str]
) -> None:
    listener = Listener()
    parity = Parity(cast(Any, listener), Progress(), cast(Any, listener))
    parity._first_gaps = probes
    measured = Measured({"parity_mean": 1.0, "parity_max": 1.0, "parity_tokens": 1000.0})
    await parity.check_sampled(measured, version, temperature)
    (words,) = listener.warnings
    assert "the engine computes this model differently" in words
    every = ("the probes agree", "temperature 0.7", "KV cache", "temperature 1 ")
    assert [name for name in every if name in words] == named
