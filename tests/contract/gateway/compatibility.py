"""Every call of the OpenAI SDK that has to do with fine-tuning, and what it does here.

``python -m tests.contract.gateway.compatibility`` makes each call and writes the table of
``services/gateway/README.md``.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.stack import (
    KEY,
    TASKS,
    Stack,
    a_checkpoint,
    a_gateway,
    a_grader,
    a_model,
    record_events,
    take_up,
)
from tests.contract.valkey_server import Server

README = Path(__file__).parents[3] / "services/gateway/README.md"
RESOURCES = (
    "files",
    "uploads",
    "uploads.parts",
    "fine_tuning.jobs",
    "fine_tuning.jobs.checkpoints",
    "fine_tuning.alpha.graders",
    "fine_tuning.checkpoints.permissions",
    "models",
)
_TABLE = re.compile(
    r"(?<=<!-- compatibility: written by its test -->\n).*?(?=<!-- end -->)", re.DOTALL
)
GRADER: Any = {
    "type": "string_check",
    "name": "exact",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "operation": "eq",
}


@dataclass
class World:
    """A gateway, its client, and what earlier calls have made there."""

    stack: Stack
    sdk: openai.OpenAI
    made: dict[str, str] = field(default_factory=dict)  # ids by what they are of


Make = Callable[[World], Any]
CALLS: list[tuple[str, str, Make]] = []  # in the order in which they are made


def call(name: str, remark: str = "") -> Callable[[Make], Make]:
    """A line of the table; the remark is said of a call that works."""

    def add(make: Make) -> Make:
        CALLS.append((name, remark, make))
        return make

    return add


@call("files.create", "tasks as JSON Lines; `purpose` is `fine-tune`; `expires_after`")
def _(world: World) -> None:
    file = world.sdk.files.create(file=("own.jsonl", TASKS.encode()), purpose="fine-tune")
    assert (file.status, file.bytes) == ("processed", len(TASKS))
    world.made["file"] = file.id


@call("files.create(purpose='assistants')")
def _(world: World) -> None:
    world.sdk.files.create(file=("tasks.jsonl", TASKS.encode()), purpose="assistants")


@call("files.retrieve")
def _(world: World) -> None:
    assert world.sdk.files.retrieve(world.made["file"]).filename == "own.jsonl"


@call("files.list", "newest first; `after`, `limit`, `order`, `purpose`")
def _(world: World) -> None:
    assert world.made["file"] in {file.id for file in world.sdk.files.list()}


@call("files.content")
def _(world: World) -> None:
    assert world.sdk.files.content(world.made["file"]).read() == TASKS.encode()


@call("files.retrieve_content", "as `files.content`, which the SDK prefers")
def _(world: World) -> None:
    assert world.sdk.files.retrieve_content(world.made["file"])


@call("files.wait_for_processing", "a file is processed when its upload is answered")
def _(world: World) -> None:
    assert world.sdk.files.wait_for_processing(world.made["file"]).status == "processed"


@call("uploads.create", "has an hour; `purpose` is `fine-tune`")
def _(world: World) -> None:
    new = world.sdk.uploads.create(
        bytes=len(TASKS), filename="parts.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )
    assert new.status == "pending"
    world.made["upload"] = new.id


@call("uploads.parts.create")
def _(world: World) -> None:
    part = world.sdk.uploads.parts.create(world.made["upload"], data=TASKS.encode())
    world.made["part"] = part.id


@call("uploads.complete", "`part_ids` in order, `md5`; the tasks are checked")
def _(world: World) -> None:
    done = world.sdk.uploads.complete(world.made["upload"], part_ids=[world.made["part"]])
    assert (done.status, done.file and done.file.status) == ("completed", "processed")


@call("uploads.upload_file_chunked")
def _(world: World) -> None:
    done = world.sdk.uploads.upload_file_chunked(
        file=TASKS.encode(),
        filename="chunked.jsonl",
        bytes=len(TASKS),
        mime_type="text/jsonl",
        purpose="fine-tune",
        part_size=100,
    )
    assert done.status == "completed"


@call("uploads.cancel", "gives up the parts")
def _(world: World) -> None:
    new = world.sdk.uploads.create(
        bytes=1, filename="none.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )
    assert world.sdk.uploads.cancel(new.id).status == "cancelled"


@call("fine_tuning.alpha.graders.validate", "says what a job would say")
def _(world: World) -> None:
    world.sdk.fine_tuning.alpha.graders.validate(grader=GRADER)


@call("fine_tuning.alpha.graders.run", "as a job's response is graded; needs a grader that runs")
def _(world: World) -> None:
    with a_grader(world.stack):
        graders = world.sdk.fine_tuning.alpha.graders
        result = graders.run(grader=GRADER, model_sample="4", item={"answer": "4"})
    assert (result.reward, result.metadata.type) == (1, "string_check")


@call(
    "fine_tuning.jobs.create",
    '`method.type` is `reinforcement`; a plain body, to which `extra_body={"recipe": …}` may add',
)
def _(world: World) -> None:
    job = world.sdk.fine_tuning.jobs.create(
        model="tiny",
        training_file=world.made["file"],
        method={"type": "reinforcement", "reinforcement": {"grader": GRADER}},
        metadata={"team": "compatibility"},
    )
    assert job.status == "queued"
    world.made["job"] = job.id


@call("fine_tuning.jobs.create(method={'type': 'supervised'})")
def _(world: World) -> None:
    world.sdk.fine_tuning.jobs.create(
        model="tiny", training_file=world.made["file"], method={"type": "supervised"}
    )


@call("fine_tuning.jobs.create(integrations=[…])")
def _(world: World) -> None:
    world.sdk.fine_tuning.jobs.create(
        model="tiny",
        training_file=world.made["file"],
        integrations=[{"type": "wandb", "wandb": {"project": "maths"}}],
    )


@call("fine_tuning.jobs.retrieve")
def _(world: World) -> None:
    job = world.sdk.fine_tuning.jobs.retrieve(world.made["job"])
    assert job.training_file == world.made["file"]


@call("fine_tuning.jobs.list", "newest first; `after`, `limit`, `metadata`")
def _(world: World) -> None:
    jobs = list(world.sdk.fine_tuning.jobs.list(metadata={"team": "compatibility"}))
    assert [job.id for job in jobs] == [world.made["job"]]


@call("fine_tuning.jobs.list_events", "newest first; `order=asc` in `extra_query` turns it round")
def _(world: World) -> None:
    record_events(world.stack, world.made["job"], range(45))
    events = world.sdk.fine_tuning.jobs.list_events(world.made["job"], limit=20)
    assert [event.message for event in events] == [f"m{44 - number}" for number in range(45)]


@call("fine_tuning.jobs.checkpoints.list", "newest first, with the numbers of their steps")
def _(world: World) -> None:
    a_checkpoint(world.stack, world.made["job"], 2, loss=0.5)
    (checkpoint,) = world.sdk.fine_tuning.jobs.checkpoints.list(world.made["job"])
    assert (checkpoint.metrics.step, checkpoint.metrics.train_loss) == (2, 0.5)
    world.made["checkpoint"] = checkpoint.fine_tuned_model_checkpoint


@call("fine_tuning.jobs.create(model=a checkpoint)", "a job that starts from another's weights")
def _(world: World) -> None:
    job = world.sdk.fine_tuning.jobs.create(
        model=world.made["checkpoint"],
        training_file=world.made["file"],
    )
    assert world.sdk.fine_tuning.jobs.cancel(job.id).model == world.made["checkpoint"]


@call("models.list", "base models, trained models, checkpoints: each can be a job's `model`")
def _(world: World) -> None:
    a_model(world.stack.data_dir / "jobs" / world.made["job"] / "model")
    listed = {model.id for model in world.sdk.models.list()}
    assert listed >= {"tiny", world.made["job"], world.made["checkpoint"]}


@call("models.retrieve")
def _(world: World) -> None:
    for name in ("tiny", world.made["job"], world.made["checkpoint"]):
        assert world.sdk.models.retrieve(name).id == name


@call("fine_tuning.jobs.pause")
def _(world: World) -> None:
    assert world.sdk.fine_tuning.jobs.pause(world.made["job"])


@call("fine_tuning.jobs.resume")
def _(world: World) -> None:
    assert world.sdk.fine_tuning.jobs.resume(world.made["job"])


@call("fine_tuning.jobs.cancel")
def _(world: World) -> None:
    assert world.sdk.fine_tuning.jobs.cancel(world.made["job"]).status == "cancelled"


@call("files.content(job.result_files[0])", "what each step measured, as a CSV")
def _(world: World) -> None:
    job = world.sdk.fine_tuning.jobs.create(model="tiny", training_file=world.made["file"])
    take_up(world.stack, job.id, state="succeeded", step=2)
    (file,) = world.sdk.fine_tuning.jobs.retrieve(job.id).result_files
    assert world.sdk.files.content(file).read().startswith(b"step")


@call("models.delete", "what an ended job has trained")
def _(world: World) -> None:
    assert world.sdk.models.delete(world.made["job"]).deleted


@call("models.delete(a base model)")
def _(world: World) -> None:
    world.sdk.models.delete("tiny")


@call("files.delete", "not while an unfinished job uses it")
def _(world: World) -> None:
    assert world.sdk.files.delete(world.made["file"]).deleted


for _name, _given in {
    "create": {"project_ids": ["one"]},
    "list": {},
    "retrieve": {},
    "delete": {"permission_id": "one"},
}.items():

    @call(f"fine_tuning.checkpoints.permissions.{_name}")
    def _(world: World, name: str = _name, given: dict[str, Any] = _given) -> None:
        ask = getattr(world.sdk.fine_tuning.checkpoints.permissions, name)
        ask(fine_tuned_model_checkpoint="ftckpt-1", **given)


def methods() -> set[str]:
    """Every public method of the SDK's resources."""
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1")
    found: set[str] = set()
    for name in RESOURCES:
        resource: Any = client
        for part in name.split("."):
            resource = getattr(resource, part)
        members = inspect.getmembers(resource, inspect.ismethod)
        found |= {f"{name}.{method}" for method, _ in members if not method.startswith("_")}
    return found


def table(world: World) -> str:
    """Make every call, and tell what came of it."""
    rows = ["| call | here |", "|---|---|"]
    for name, remark, make in CALLS:
        try:
            make(world)
            told = remark or "works"
        except openai.APIStatusError as refusal:
            told = f"{refusal.status_code}: {refusal.body['message']}"  # type: ignore[index]
        rows.append(f"| `{name}` | {told} |")
    return "\n".join(rows) + "\n"


@contextmanager
def a_world() -> Iterator[World]:
    """A gateway of its own, where nothing has been made yet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a_models_root(folder)
        (folder / "valkey").mkdir()
        with (
            Server(folder / "valkey") as server,
            a_gateway(server, folder) as stack,
            openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as sdk,
        ):
            yield World(stack, sdk)


def told_in_readme() -> str:
    """The table as it stands."""
    found = _TABLE.search(README.read_text(encoding="utf-8"))
    assert found is not None
    return found[0]


if __name__ == "__main__":
    with a_world() as world:
        text = table(world)
    README.write_text(
        _TABLE.sub(lambda _: text, README.read_text(encoding="utf-8")), encoding="utf-8"
    )
