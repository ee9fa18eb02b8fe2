"""The OpenAI SDK gets the answers and refusals that the reference lists."""

import inspect
import re
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.contract.gateway.stack import (
    EXACT,
    TASKS,
    Stack,
    a_checkpoint,
    a_grader,
    a_model,
    record_events,
    reinforcement,
    take_up,
)

pytestmark = pytest.mark.redis
REFERENCE = Path(__file__).parents[3] / "docs/reference/rest.md"
RESOURCES = (
    "files",
    "uploads",
    "uploads.parts",
    "models",
    "fine_tuning.jobs",
    "fine_tuning.jobs.checkpoints",
    "fine_tuning.alpha.graders",
    "fine_tuning.checkpoints.permissions",
)


def rows_of_the_table() -> dict[str, str]:
    """Return the refusal of each call that the reference lists."""
    text = REFERENCE.read_text(encoding="utf-8")
    table = text.split("<!-- compatibility")[1].split("<!-- end")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE)
    return {name: answer for names, answer in rows for name in re.findall("`([^`]+)`", names)}


def methods() -> set[str]:
    """Every public method of the SDK's resources."""
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1")
    names = set[str]()
    for name in RESOURCES:
        members = inspect.getmembers(attrgetter(name)(client), inspect.ismethod)
        names |= {f"{name}.{method}" for method, _ in members if not method.startswith("_")}
    return names


def test_every_method_works_or_is_refused_as_the_table_says(
    stack: Stack, sdk: openai.OpenAI
) -> None:
    rows = rows_of_the_table()
    called = set[str]()

    def call(row: str, *arguments: Any, **fields: Any) -> Any:
        name = row.partition("(")[0]
        called.add(name)
        work = partial(attrgetter(name)(sdk), *arguments, **fields)
        refusal = rows.pop(row, None)
        if refusal is None:
            return work()
        with pytest.raises(openai.APIStatusError) as caught:
            work()
        body: Any = caught.value.body
        assert f"{caught.value.status_code}: {body['message']}" == refusal

    content = TASKS.encode()
    tasks = ("own.jsonl", content)
    file = call("files.create", file=tasks, purpose="fine-tune")
    call("files.create(purpose='assistants')", file=tasks, purpose="assistants")
    assert call("files.retrieve", file.id) == file
    assert file.id in {stored.id for stored in call("files.list")}
    assert call("files.content", file.id).read() == content
    call("files.retrieve_content", file.id)
    call("files.wait_for_processing", file.id)

    new: Any = {"filename": "p.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    new["bytes"] = len(content)
    call("uploads.create", **new)
    call("uploads.parts.create", "upload", data=b"")
    call("uploads.complete", "upload", part_ids=["part"])
    call("uploads.cancel", "upload")
    call("uploads.upload_file_chunked", file=content, **new)

    call("fine_tuning.alpha.graders.validate", grader=EXACT)
    answer = {"model_sample": "4", "item": {"answer": "4"}}
    with a_grader(stack):
        result = call("fine_tuning.alpha.graders.run", grader=EXACT, **answer)
    assert result.reward == 1
    assert result.metadata.type == "string_check"

    create = "fine_tuning.jobs.create"
    of_tiny = {"model": "tiny", "training_file": file.id}
    labels = {"team": "compatibility"}
    job = call(
        create,
        **of_tiny,
        method=reinforcement(grader=EXACT),
        metadata=labels,
    )
    call(f"{create}(method={{'type': 'supervised'}})", **of_tiny, method={"type": "supervised"})
    formatted = reinforcement(grader=EXACT, response_format={"type": "json_object"})
    call(f"{create}(response_format=…)", **of_tiny, method=formatted)
    wandb = {"type": "wandb", "wandb": {"project": "maths"}}
    call(f"{create}(integrations=[…])", **of_tiny, integrations=[wandb])
    assert call("fine_tuning.jobs.retrieve", job.id).id == job.id
    listed = call("fine_tuning.jobs.list", metadata=labels)
    assert [row.id for row in listed] == [job.id]
    record_events(stack, job.id, range(45))
    events = call("fine_tuning.jobs.list_events", job.id, limit=20)
    assert [event.message for event in events] == [f"m{44 - number}" for number in range(45)]
    without_model = a_checkpoint(stack, job.id, 2, loss=0.5).with_name("step-000003")
    without_model.mkdir()
    (saved,) = call("fine_tuning.jobs.checkpoints.list", job.id)
    assert saved.metrics.step == 2
    assert saved.metrics.train_loss == 0.5
    checkpoint = saved.fine_tuned_model_checkpoint
    fork = call(f"{create}(model=a checkpoint)", model=checkpoint, training_file=file.id)
    assert sdk.fine_tuning.jobs.cancel(fork.id).model == checkpoint

    a_model(stack.job_folder(job.id) / "model")
    models = {"tiny", job.id, checkpoint}
    listed = {model.id: model for model in call("models.list")}
    assert listed.keys() >= models | {"chat", "examples/arithmetic/base-model"}
    assert not listed.keys() & {"pickled", "no-config", "no-type", "torn", "escape", "leak"}
    for model in models:
        assert call("models.retrieve", model) == listed[model]
        assert listed[model].owned_by == ("system" if model == "tiny" else "weir")
    for verb in ("pause", "resume", "cancel"):
        call(f"fine_tuning.jobs.{verb}", job.id)
    ended = call(create, **of_tiny).id
    take_up(stack, ended, state="succeeded", step=2)
    (result_file,) = call("fine_tuning.jobs.retrieve", ended).result_files
    metrics = call("files.content(job.result_files[0])", result_file)
    assert metrics.read().startswith(b"step")
    assert call("models.delete", job.id).deleted
    call("models.delete(a base model)", "tiny")
    assert call("files.delete", file.id).deleted

    permissions = "fine_tuning.checkpoints.permissions"
    call(f"{permissions}.create", "x", project_ids=["one"])
    call(f"{permissions}.list", "x")
    call(f"{permissions}.retrieve", "x")
    call(f"{permissions}.delete", "one", fine_tuned_model_checkpoint="x")
    assert rows == {}, "calls of the table that are not made here"
    assert called == methods()
