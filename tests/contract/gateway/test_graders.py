"""Graders that a running grader offers, tried by the openai SDK."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.gateway.stack import (
    EXACT,
    JOBS,
    Client,
    Stack,
    a_body,
    a_grader,
    assert_refused,
    reinforcement,
    submit_job,
)
from tests.fuzz.bodies import ROUTES, TRIALS, VALIDATE, try_bodies

pytestmark = pytest.mark.redis

LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
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
BOTH = {
    "type": "multi",
    "name": "m",
    "graders": {"exact": EXACT, "maths": {"type": "math_answer"}},
    "calculate_output": "max(exact, 0.25 + maths / 2)",
}


@pytest.fixture(scope="module", autouse=True)
def grader(stack: Stack) -> Iterator[None]:
    with a_grader(stack, WEIR_GRADER_PYTHON="on"):
        yield


def run(sdk: openai.OpenAI, grader: Any, text: str, **item: Any) -> Any:
    graders = sdk.fine_tuning.alpha.graders
    return graders.run(grader=grader, model_sample=text, item=item)


def test_a_grader_is_run_in_the_shape_of_the_sdk(sdk: openai.OpenAI) -> None:
    result = run(sdk, EXACT, "Paris", answer="Paris")
    assert (result.reward, result.sub_rewards) == (1, {})
    assert result.metadata.name == "exact"
    assert result.metadata.type == "string_check"
    assert result.metadata.scores == {"string_check": 1}
    assert result.metadata.execution_time > 0
    assert not any(result.metadata.errors.to_dict().values())
    result = run(sdk, BOTH, r"\boxed{2.0}", answer="2")
    assert (result.reward, result.sub_rewards) == (0.75, {"exact": 0, "maths": 1})
    assert run(sdk, SOURCE, "ab", most=8).reward == 0.25


def test_a_response_is_graded_as_a_job_does(http: Client) -> None:
    trial = {"model_sample": r"1+1=2; 2+1=4; \boxed{2}", "item": {"prompt": "1+1=?", "answer": "2"}}
    by_job = trial | {"job": submit_job(http)}
    result = http.post(TRIALS, json=by_job).json()
    assert result["reward"] == 1
    assert result["metadata"]["type"] == "job"
    assert result["weir"]["outcome"]["marks"]
    assert 0 < result["weir"]["process"]["value"] < 1
    for body in (trial, by_job | {"grader": EXACT}):
        assert_refused(http.post(TRIALS, json=body), 400, "grader")
    assert_refused(http.post(TRIALS, json=trial | {"job": "ftjob-none"}), 404, "id")


@pytest.mark.parametrize(
    ("grader", "error", "details"),
    [
        (BOTH | {"calculate_output": "maths / exact"}, "formula_parse_error", None),
        (EXACT | {"reference": "{{item.city}}"}, "invalid_variable_error", None),
        (SOURCE, "python_grader_runtime_error", "KeyError: 'most'"),
    ],
)
def test_what_cannot_be_graded_has_no_reward_and_a_flag(
    sdk: openai.OpenAI, grader: Any, error: str, details: str | None
) -> None:
    result = run(sdk, grader, r"\boxed{2}", answer="2")
    errors = result.metadata.errors.to_dict()
    assert result.reward is None
    assert [name for name, value in errors.items() if value is True] == [error]
    assert details is None or details in errors[f"{error}_details"]


def test_what_no_grader_can_do_is_refused_by_name(http: Client) -> None:
    answerless = {"grader": {"type": "math_answer"}, "model_sample": "x", "item": {}}
    oracle = {"recipe": {"reward": {"process": "my_lab.oracle"}}}
    for path, body, param in (
        (VALIDATE, {"grader": JUDGED}, "grader"),
        (TRIALS, answerless, "item.answer"),
        (JOBS, a_body(http, method=reinforcement(grader=JUDGED)), "method.reinforcement.grader"),
        (JOBS, a_body(http, **oracle), "recipe.reward.process.0"),
    ):
        assert_refused(http.post(path, json=body), 400, param)


@pytest.mark.parametrize(
    ("routes", "count"),
    [
        (ROUTES, 150),
        ((TRIALS,), 40),
        pytest.param(ROUTES, 20_000, marks=LONG),
        pytest.param((TRIALS,), 2_000, marks=LONG),
    ],
)
def test_no_random_body_breaks_the_gateway(
    stack: Stack, routes: tuple[str, ...], count: int
) -> None:
    result = try_bodies(stack, seed=1, numbers=range(count), routes=routes)
    assert result.faults == []
    assert set(result.statuses) >= {200, 400}
