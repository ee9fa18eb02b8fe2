"""The OpenAI SDK, unmodified, against the running stack: from a file to a model that is used."""

from __future__ import annotations

import csv
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.fine_tuning import FineTuningJob

from tests.stack.conftest import BASE_MODEL, TASKS, Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(900)]
NUM_TASKS, BATCH, EPOCHS = 16, 4, 1
GRADER: Any = {
    "type": "string_check",
    "name": "says-the-answer",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference_answer }}",
    "operation": "like",
}


@pytest.fixture
def sdk(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.facts['url']}/v1", api_key=stack.facts["api_key"])


@pytest.fixture
def chat_model(stack: Stack) -> Path:
    """The arithmetic model, with a chat template that shows the user's words alone."""
    folder = stack.home / "models/arithmetic-chat"
    shutil.copytree(BASE_MODEL, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for each in messages %}{{ each['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def lines(begin: int) -> bytes:
    """Tasks as OpenAI's data has them."""
    with TASKS.open() as tasks:
        items = [json.loads(line) for line in islice(tasks, begin, begin + NUM_TASKS)]
    return b"".join(
        json.dumps(
            {
                "messages": [{"role": "user", "content": item["prompt"]}],
                "reference_answer": item["answer"],
            }
        ).encode()
        + b"\n"
        for item in items
    )


def ended(sdk: openai.OpenAI, job_id: str) -> FineTuningJob:
    def is_over() -> bool:
        status = sdk.fine_tuning.jobs.retrieve(job_id).status
        return status in {"succeeded", "failed", "cancelled"}

    wait_for(is_over, 240, f"the end of {job_id}")
    return sdk.fine_tuning.jobs.retrieve(job_id)


def rewarded(sdk: openai.OpenAI, job_id: str) -> list[int]:
    """The steps whose reward the events tell, in their order."""
    told = [event.data for event in sdk.fine_tuning.jobs.list_events(job_id, limit=100)]
    return [data["step"] for data in told if isinstance(data, dict) and "reward" in data]


def test_a_plain_body_trains_a_model_and_the_next_job_begins_with_it(
    sdk: openai.OpenAI, chat_model: Path
) -> None:
    files = [
        sdk.files.create(file=(f"{begin}.jsonl", lines(begin)), purpose="fine-tune")
        for begin in (0, NUM_TASKS)
    ]
    train, held_out = [sdk.files.wait_for_processing(file.id) for file in files]
    graders = sdk.fine_tuning.alpha.graders
    graders.validate(grader=GRADER)
    tried = graders.run(grader=GRADER, model_sample="It is 24", item={"reference_answer": "24"})
    assert tried.reward == 1.0

    hyperparameters: Any = {"batch_size": BATCH, "n_epochs": EPOCHS, "eval_samples": 1}
    method: Any = {
        "type": "reinforcement",
        "reinforcement": {"grader": GRADER, "hyperparameters": hyperparameters},
    }
    job = sdk.fine_tuning.jobs.create(
        model=str(chat_model),
        training_file=train.id,
        validation_file=held_out.id,
        method=method,
        suffix="plain",
        seed=1,
    )
    done = ended(sdk, job.id)
    assert done.status == "succeeded", done.error
    assert done.trained_tokens
    steps = NUM_TASKS * EPOCHS // BATCH
    assert rewarded(sdk, job.id) == list(range(steps, 0, -1))  # newest first
    checkpoints = sdk.fine_tuning.jobs.checkpoints.list(job.id).data
    assert max(each.step_number for each in checkpoints) == steps

    results = sdk.files.content(done.result_files[0]).read().decode().splitlines()
    assert [int(row["step"]) for row in csv.DictReader(results)] == list(range(steps + 1))

    assert done.fine_tuned_model is not None
    assert sdk.models.retrieve(done.fine_tuned_model).id == done.fine_tuned_model
    method["reinforcement"]["hyperparameters"] = {"batch_size": BATCH, "n_epochs": 1000}
    following = sdk.fine_tuning.jobs.create(
        model=done.fine_tuned_model, training_file=train.id, method=method
    )
    wait_for(lambda: bool(rewarded(sdk, following.id)), 300, "a step")
    sdk.fine_tuning.jobs.cancel(following.id)
    assert ended(sdk, following.id).status == "cancelled"
    assert sdk.models.delete(done.fine_tuned_model).deleted
    assert sdk.files.delete(train.id).deleted
