"""What the reference says of the routes and of the OpenAI SDK is what calls come to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
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
    *("files", "uploads", "uploads.parts", "models"),
    *("fine_tuning.jobs", "fine_tuning.jobs.checkpoints"),
    *("fine_tuning.alpha.graders", "fine_tuning.checkpoints.permissions"),
)


def rows_of_the_table() -> dict[str, str]:
    """What the reference says of each call that is refused."""
    text = REFERENCE.read_text(encoding="utf-8")
    table = text.split("<!-- compatibility")[1].split("<!-- end")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE)
    return {name: answer for names, answer in rows for name in re.findall("`([^`]+)`", names)}


def methods() -> set[str]:
    """Every public method of the SDK's resources."""
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1")
    names = set[str]()
    for name in RESOURCES:
        resource: Any = client
        for part in name.split("."):
            resource = getattr(resource, part)
        members = inspect.getmembers(resource, inspect.ismethod)
        names |= {f"{name}.{method}" for method, _ in members if not method.startswith("_")}
    return names


def test_every_method_works_but_those_of_the_table_which_are_refused_as_it_says(
    stack: Stack, sdk: openai.OpenAI
) -> None:
    rows = rows_of_the_table()
    called = set[str]()
    jobs = sdk.fine_tuning.jobs

    def call(name: str, work: Callable[[], Any]) -> Any:
        called.add(name.partition("(")[0])
        if (refusal := rows.pop(name, None)) is None:
            return work()
        with pytest.raises(openai.APIStatusError) as caught:
            work()
        body: Any = caught.value.body
        assert f"{caught.value.status_code}: {body['message']}" == refusal

    file = call(
        "files.create",
        lambda: sdk.files.create(file=("own.jsonl", TASKS.encode()), purpose="fine-tune"),
    )
    call(
        "files.create(purpose='assistants')",
        lambda: sdk.files.create(file=("own.jsonl", TASKS.encode()), purpose="assistants"),
    )
    assert call("files.retrieve", lambda: sdk.files.retrieve(file.id)) == file
    assert file.id in {file.id for file in call("files.list", sdk.files.list)}
    assert call("files.content", lambda: sdk.files.content(file.id)).read() == TASKS.encode()
    call("files.retrieve_content", lambda: sdk.files.retrieve_content(file.id))
    call("files.wait_for_processing", lambda: sdk.files.wait_for_processing(file.id))

    new: Any = {"filename": "p.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    new["bytes"] = len(TASKS)
    call("uploads.create", lambda: sdk.uploads.create(**new))
    call("uploads.parts.create", lambda: sdk.uploads.parts.create("upload", data=b""))
    call("uploads.complete", lambda: sdk.uploads.complete("upload", part_ids=["part"]))
    call("uploads.cancel", lambda: sdk.uploads.cancel("upload"))
    call(
        "uploads.upload_file_chunked",
        lambda: sdk.uploads.upload_file_chunked(file=TASKS.encode(), **new),
    )

    graders = sdk.fine_tuning.alpha.graders
    call("fine_tuning.alpha.graders.validate", lambda: graders.validate(grader=EXACT))
    with a_grader(stack):
        result = call(
            "fine_tuning.alpha.graders.run",
            lambda: graders.run(grader=EXACT, model_sample="4", item={"answer": "4"}),
        )
    assert result.reward == 1
    assert result.metadata.type == "string_check"

    def create(**values: Any) -> Any:
        return jobs.create(**{"model": "tiny", "training_file": file.id, **values})

    name = "fine_tuning.jobs.create"
    mine = {"team": "compatibility"}
    job = call(name, lambda: create(method=reinforcement(grader=EXACT), metadata=mine))
    call(f"{name}(method={{'type': 'supervised'}})", lambda: create(method={"type": "supervised"}))
    formatted = reinforcement(grader=EXACT, response_format={"type": "json_object"})
    call(f"{name}(response_format=…)", lambda: create(method=formatted))
    wandb = {"type": "wandb", "wandb": {"project": "maths"}}
    call(f"{name}(integrations=[…])", lambda: create(integrations=[wandb]))
    assert call("fine_tuning.jobs.retrieve", lambda: jobs.retrieve(job.id)).id == job.id
    listed = call("fine_tuning.jobs.list", lambda: jobs.list(metadata=mine))
    assert [row.id for row in listed] == [job.id]
    record_events(stack, job.id, range(45))
    events = call("fine_tuning.jobs.list_events", lambda: jobs.list_events(job.id, limit=20))
    assert [event.message for event in events] == [f"m{44 - number}" for number in range(45)]
    a_checkpoint(stack, job.id, 2, loss=0.5)
    saved = call("fine_tuning.jobs.checkpoints.list", lambda: jobs.checkpoints.list(job.id)).data[0]
    assert saved.metrics.step == 2
    assert saved.metrics.train_loss == 0.5
    checkpoint = saved.fine_tuned_model_checkpoint
    fork = call(f"{name}(model=a checkpoint)", lambda: create(model=checkpoint))
    assert jobs.cancel(fork.id).model == checkpoint

    a_model(stack.data_dir / "jobs" / job.id / "model")
    models = {"tiny", job.id, checkpoint}
    assert {model.id for model in call("models.list", sdk.models.list)} >= models
    call("models.retrieve", lambda: [sdk.models.retrieve(model) for model in models])
    for verb in ("pause", "resume", "cancel"):
        call(f"fine_tuning.jobs.{verb}", lambda verb=verb: getattr(jobs, verb)(job.id))
    ended = create().id
    take_up(stack, ended, state="succeeded", step=2)
    content = call(
        "files.content(job.result_files[0])",
        lambda: sdk.files.content(jobs.retrieve(ended).result_files[0]),
    )
    assert content.read().startswith(b"step")
    assert call("models.delete", lambda: sdk.models.delete(job.id)).deleted
    call("models.delete(a base model)", lambda: sdk.models.delete("tiny"))
    assert call("files.delete", lambda: sdk.files.delete(file.id)).deleted

    permissions = sdk.fine_tuning.checkpoints.permissions
    for verb, fields in {
        "create": {"project_ids": ["one"]},
        "list": {},
        "retrieve": {},
        "delete": {"permission_id": "one"},
    }.items():
        ask, fields = getattr(permissions, verb), {"fine_tuned_model_checkpoint": "x", **fields}
        call(f"fine_tuning.checkpoints.permissions.{verb}", lambda: ask(**fields))  # noqa: B023
    assert rows == {}, "calls of the table that are not made here"
    assert called == methods()
