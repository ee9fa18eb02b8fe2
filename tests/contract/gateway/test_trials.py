"""Graders tried by the openai SDK: the gateway asks, a grader that runs computes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from protocol.exchange import Exchange
from protocol.messages import Trial, TrialResult

from services.gateway.errors import Problem
from services.gateway.openai.graders import GraderToRun, run_trial
from tests.contract.conftest import OpenExchange
from tests.contract.gateway.stack import (
    EXACT,
    JOBS,
    Stack,
    a_body,
    a_grader,
    assert_refused,
    reinforcement,
)
from tests.fuzz.bodies import TRIALS, try_bodies

pytestmark = pytest.mark.redis

SOURCE = {
    "type": "python",
    "name": "own",
    "source": "def grade(sample, item):\n    return len(sample['output_text']) / item['most']",
}
JUDGED: dict[str, Any] = {
    "type": "score_model",
    "name": "judged",
    "model": "gpt-5",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}


@pytest.fixture(scope="module", autouse=True)
def grader(stack: Stack) -> Iterator[None]:
    with a_grader(stack):
        yield


def run(sdk: openai.OpenAI, grader: Any, text: str, **item: Any) -> Any:
    graders = sdk.fine_tuning.alpha.graders
    return graders.run(grader=grader, model_sample=text, item=item)


def test_a_grader_is_run_in_the_shape_of_the_sdk(sdk: openai.OpenAI) -> None:
    result = run(sdk, EXACT, "Paris", answer="Paris")
    assert result.reward == 1
    assert result.sub_rewards == {}
    assert (result.metadata.name, result.metadata.type) == ("exact", "string_check")
    assert result.metadata.scores == {"string_check": 1}
    assert result.metadata.execution_time > 0
    errors = result.metadata.errors.to_dict()
    assert errors
    assert not any(errors.values())


def test_a_multi_is_reckoned_by_its_formula(sdk: openai.OpenAI) -> None:
    graders = {"exact": EXACT, "maths": {"type": "math_answer"}}
    grader = {"type": "multi", "name": "m", "graders": graders}
    best = grader | {"calculate_output": "max(exact, 0.25 + maths / 2)"}
    result = run(sdk, best, r"\boxed{\frac{4}{2}}", answer="2")
    assert result.reward == 0.75
    assert result.sub_rewards == {"exact": 0, "maths": 1}
    undefined = grader | {"calculate_output": "maths / exact"}
    result = run(sdk, undefined, r"\boxed{2}", answer="2")
    assert result.reward is None
    assert result.metadata.errors.formula_parse_error


def test_a_clients_function_is_run_and_its_error_told(sdk: openai.OpenAI) -> None:
    assert run(sdk, SOURCE, "ab", most=8).reward == 0.25
    result = run(sdk, SOURCE, "ab")
    assert result.reward is None
    assert result.metadata.errors.python_grader_runtime_error
    assert "KeyError: 'most'" in result.metadata.errors.python_grader_runtime_error_details


def test_what_a_template_asks_for_and_the_item_lacks_is_an_error_of_a_variable(
    sdk: openai.OpenAI,
) -> None:
    result = run(sdk, EXACT, "Paris", question="Paris")
    assert result.reward is None
    assert result.metadata.errors.invalid_variable_error


def test_what_no_grader_can_do_is_refused_by_name(http: httpx.Client, sdk: openai.OpenAI) -> None:
    graders = sdk.fine_tuning.alpha.graders
    for param, work in {
        "grader": lambda: graders.validate(grader=JUDGED),  # type: ignore[arg-type]
        "item.answer": lambda: run(sdk, {"type": "math_answer"}, "x"),
    }.items():
        with pytest.raises(openai.BadRequestError) as caught:
            work()
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="WEIR_JUDGE_URL"):
        run(sdk, JUDGED, "x")
    reply = http.post(JOBS, json=a_body(http, method=reinforcement(grader=JUDGED)))
    assert_refused(reply, 400, "method.reinforcement.grader")
    recipe = a_body(http)["recipe"] | {"reward": {"process": "my_lab.oracle"}}
    reply = http.post(JOBS, json=a_body(http, recipe=recipe))
    assert_refused(reply, 400, "recipe.reward.process.0")


@pytest.mark.parametrize(
    "count", [40, pytest.param(2_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_no_body_breaks_a_trial(stack: Stack, count: int) -> None:
    found = try_bodies(stack, seed=1, numbers=range(count), routes=[TRIALS])
    assert found.faults == []
    assert set(found.statuses) >= {200, 400}


def a_trial() -> Trial:
    return GraderToRun.model_validate({"grader": EXACT, "model_sample": "x"}).trial()


@pytest.mark.anyio
async def test_without_a_grader_the_answer_is_503_and_nothing_is_left(exchange: Exchange) -> None:
    with pytest.raises(Problem, match="no grader") as caught:
        await run_trial(exchange, a_trial(), taken_within_s=0.05)
    assert caught.value.status_code == 503
    assert await exchange.take_trial(wait_s=0.05) is None


@pytest.mark.anyio
async def test_a_grader_that_ends_meanwhile_and_too_many_that_wait_are_503(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    trial = a_trial()
    asked = asyncio.create_task(run_trial(exchange, trial, taken_within_s=1, done_within_s=0.05))
    async with open_exchange("grader") as other:
        assert await other.take_trial(wait_s=60) == trial
    with pytest.raises(Problem, match="has ended"):
        await asked
    for _ in range(32):
        await exchange.ask_trial(a_trial(), most=32)
    with pytest.raises(Problem, match="32 trials") as caught:
        await run_trial(exchange, trial)
    assert caught.value.status_code == 503


@pytest.mark.anyio
async def test_what_the_grader_lacks_is_the_callers_to_mend(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    trial = a_trial()
    async with open_exchange("grader") as other:
        await other.answer_trial(trial, TrialResult(missing="no judge"))
    with pytest.raises(Problem, match="no judge") as caught:
        await run_trial(exchange, trial)
    assert caught.value.status_code == 400
