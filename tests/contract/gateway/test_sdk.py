"""The REST surface as the OpenAI SDK uses it, unmodified."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.graders import (
    ScoreModelGraderParam,
    StringCheckGrader,
    StringCheckGraderParam,
)
from protocol.rewards import ScoreModel

from tests.contract.gateway.stack import (
    RECIPE,
    TASKS,
    Stack,
)

pytestmark = pytest.mark.redis


def test_a_plain_body_of_the_openai_sdk_is_a_job_and_its_method_comes_back(
    sdk: openai.OpenAI,
) -> None:
    file = sdk.files.create(file=("tasks.jsonl", TASKS.encode()), purpose="fine-tune")
    grader: StringCheckGraderParam = {
        "type": "string_check",
        "name": "exact",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    job = sdk.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        validation_file=file.id,
        method={
            "type": "reinforcement",
            "reinforcement": {
                "grader": grader,
                "hyperparameters": {
                    "batch_size": 2,
                    "n_epochs": "auto",
                    "learning_rate_multiplier": 2.0,
                    "eval_interval": "auto",
                    "reasoning_effort": "default",
                },
            },
        },
    )
    job = sdk.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "queued"
    assert job.method is not None
    assert job.method.reinforcement is not None
    assert job.method.reinforcement.grader == StringCheckGrader.model_validate(grader)
    told = job.method.reinforcement.hyperparameters
    assert told is not None
    assert told.to_dict() == {
        **{"batch_size": 2, "n_epochs": 10, "learning_rate_multiplier": 2.0},
        **{"eval_interval": 4, "eval_samples": 4, "reasoning_effort": "default"},
    }
    assert job.estimated_finish is None
    sdk.fine_tuning.jobs.cancel(job.id)


def test_a_grader_of_the_openai_sdk_becomes_the_outcome_of_the_reward(
    stack: Stack, sdk: openai.OpenAI
) -> None:
    file = sdk.files.create(file=("tasks.jsonl", TASKS.encode()), purpose="fine-tune")
    exact: StringCheckGraderParam = {
        "type": "string_check",
        "name": "exact",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
        "operation": "like",
    }
    judged: ScoreModelGraderParam = {
        "type": "score_model",
        "name": "judged",
        "model": "judge",
        "input": [{"role": "user", "content": "Grade from 0 to 1: {{sample.output_text}}"}],
        "range": [0, 1],
        "sampling_params": {"max_completions_tokens": 900, "reasoning_effort": "low"},
    }
    grader: Any = {  # the SDK's type knows one grader in `graders`; the API's pages show a mapping
        "type": "multi",
        "name": "both",
        "graders": {"exact": exact, "judged": judged},
        "calculate_output": "0.8 * exact + 0.2 * judged",
    }
    job = sdk.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        method={"type": "reinforcement", "reinforcement": {"grader": grader}},
        extra_body={"recipe": RECIPE},
    )
    record = stack.exchange(lambda exchange: exchange.job(job.id))
    assert record is not None
    outcome = record.recipe.reward.outcome
    assert [(check.label, check.weight) for check in outcome] == [("exact", 0.8), ("judged", 0.2)]
    assert isinstance(outcome[1], ScoreModel)
    assert (outcome[1].range, outcome[1].max_tokens) == ((0.0, 1.0), 900)
    assert sdk.fine_tuning.alpha.graders.validate(grader=exact).to_dict() == {"grader": exact}


def test_the_openai_sdk_raises_its_typed_errors(stack: Stack, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="ftjob-none"):
        sdk.fine_tuning.jobs.retrieve("ftjob-none")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.fine_tuning.jobs.create(model="tiny", training_file="file-none")
    assert (caught.value.param, caught.value.code) == ("training_file", "file_not_found")
    assert caught.value.type == "invalid_request_error"
    stranger = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="WEIR_API_KEYS"):
        stranger.fine_tuning.jobs.list()
