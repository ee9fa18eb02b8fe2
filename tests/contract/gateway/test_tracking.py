"""Events of a job reach the trackers once, read by the trackers' own readers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from tests.contract.gateway.stack import (
    JOBS,
    KEY,
    Client,
    Stack,
    a_job_in,
    an_event,
    end_of,
    know,
    start_weir,
    submit_job,
    take_up,
    tell,
    wait_until,
    weir,
)
from weir import trackers
from weir.client import WeirClient

pytestmark = pytest.mark.redis

Points = list[tuple[int, float]]
TRACK = ("--to", "tensorboard:runs", "--to", "wandb:maths")
REWARDS = [
    (1, 0.125),
    (2, 0.25),
    (3, 0.375),
    (4, 0.5),
]
EXPECTED: dict[str, Points] = {
    "reward": REWARDS[:2],
    "groups/asked": [(1, 4.0), (2, 8.0)],
    "groups/dropped/no_signal": [(1, 1.0), (2, 2.0)],
    "evaluation/accuracy": [(0, 0.0), (2, 0.125)],
    "evaluation/pass_at_4": [(0, 0.75), (2, 0.75)],
    "pretrain/value_loss": [(1, 1.0), (2, 0.5)],
}


@pytest.fixture
def folder(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    know(tmp_path, stack.url)
    return tmp_path


def step_data(step: int) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": step,
        "reward": step / 8,
        "gap": None,
        "groups": {"asked": 4 * step, "dropped": {"no signal": step}},
    }


def tell_step(stack: Stack, job_id: str, step: int) -> None:
    tell(stack, an_event(job_id, step, data=step_data(step)))


def tell_story(stack: Stack, job_id: str) -> None:
    """The critic learns alone, then steps between two evaluations, and a warning."""

    def evaluation(step: int) -> dict[str, Any]:
        result = {
            "accuracy": step / 16,
            "pass@4": 0.75,
            "per_task": {"t1": [1.0, 4]},
        }
        return {"kind": "evaluation", "step": step, "evaluation": {"step": step, **result}}

    data = [
        {"kind": "pretrain", "pretrain_step": 1, "value_loss": 1.0},
        {"kind": "pretrain", "pretrain_step": 2, "value_loss": 0.5},
        evaluation(0),
        step_data(1),
        step_data(2),
        evaluation(2),
    ]
    metrics = [an_event(job_id, number, data=values) for number, values in enumerate(data)]
    tell(
        stack,
        *metrics,
        an_event(job_id, 98),
        an_event(job_id, 99, level="warn"),
    )


def open_tensorboard(folder: Path) -> EventAccumulator:
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return EventAccumulator(str(run)).Reload()


def read_points(read: EventAccumulator, tag: str) -> Points:
    is_there = tag in read.Tags()["scalars"]
    return [(point.step, point.value) for point in read.Scalars(tag)] if is_there else []


def read_text(read: EventAccumulator, tag: str) -> str:
    return read.Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """The rows of every offline run, in the order of their starts."""
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for record in read_records(path)
        if (items := record.history.item)
    ]


def read_records(path: Path) -> Iterator[Any]:
    """The records of W&B's file: LevelDB's log format behind a header of 7 bytes."""
    content = path.read_bytes()
    place = 7
    whole = b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or its last part
            yield vars(wandb_internal_pb2)["Record"].FromString(whole)
            whole = b""


def test_tensorboard_and_wandb_find_every_number_of_a_job(stack: Stack, folder: Path) -> None:
    job_id = a_job_in(stack, "succeeded")
    tell_story(stack, job_id)
    status, out, err = weir(folder, "track", job_id, *TRACK)
    assert status == 0, err
    assert "all its events are in tensorboard:runs, wandb:maths" in out

    read = open_tensorboard(folder / "runs")
    assert {tag: read_points(read, tag) for tag in read.Tags()["scalars"]} == EXPECTED
    assert read_text(read, "messages/warn") == "m99"
    assert read_text(read, "state") == "succeeded"
    assert '"groups_per_step": 4' in read_text(read, "recipe")
    assert read.PluginTagToContent("hparams")

    rows = read_wandb(folder)
    for name, points in EXPECTED.items():
        axis = "pretrain/step" if name.startswith("pretrain/") else "step"
        assert [(row[axis], row[name]) for row in rows if name in row] == points
    assert [row["_step"] for row in rows] == list(range(len(rows)))


def test_a_tracker_that_was_killed_goes_on_and_writes_nothing_twice(
    stack: Stack, folder: Path
) -> None:
    job_id = a_job_in(stack, "running")
    runs = folder / "runs"

    def is_written(count: int) -> bool:
        notes = list(runs.glob("*.json"))
        return bool(notes) and read_points(open_tensorboard(runs), "reward") == REWARDS[:count]

    tell_step(stack, job_id, 1)
    process = start_weir(folder, "track", job_id, *TRACK)
    wait_until(lambda: is_written(1))
    (note,) = runs.glob("*.json")
    earlier_note = note.read_bytes()
    tell_step(stack, job_id, 2)
    wait_until(lambda: is_written(2))
    process.kill()
    end_of(process)
    note.write_bytes(earlier_note)  # as if killed between the points and its note of them

    for step in (3, 4):
        tell_step(stack, job_id, step)
    take_up(stack, job_id, state="failed", error="no")
    status, _, err = weir(folder, "track", job_id, *TRACK)
    assert status == 0, err
    read = open_tensorboard(runs)
    assert read_points(read, "reward") == REWARDS
    assert read_text(read, "state") == "failed"
    rows = read_wandb(folder)
    assert [(row["step"], row["reward"]) for row in rows] == REWARDS
    assert [row["_step"] for row in rows] == [0, 1, 2, 3]


def test_all_jobs_are_written_those_to_come_among_them_until_it_is_told_to_stop(
    stack: Stack, http: Client, folder: Path
) -> None:
    first = a_job_in(stack, "running")
    waiting = submit_job(http)
    notes = lambda job_id: list(folder.glob(f"runs/*{job_id}.json"))  # noqa: E731
    tell_step(stack, first, 1)
    process = start_weir(folder, "track", "--all", "--to", "tensorboard:runs")
    wait_until(lambda: notes(first))
    assert not notes(waiting)
    take_up(stack, waiting, state="succeeded")
    tell_step(stack, waiting, 1)
    wait_until(lambda: notes(waiting))
    process.terminate()
    status, out, err = end_of(process)
    assert status == 130
    assert err == ""
    assert "continues from there" in out


class Away(httpx.HTTPTransport):
    """The gateway does not answer a few requests after the first."""

    num_requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.num_requests += 1
        if 1 < self.num_requests < 4:
            raise httpx.ConnectError("away")
        return super().handle_request(request)


def test_while_the_gateway_is_away_it_waits_and_says_so_once(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = a_job_in(stack, "succeeded")
    tell_step(stack, job_id, 1)
    with WeirClient(stack.url, KEY, transport=Away()) as client:
        target = trackers.Target("tensorboard", str(tmp_path))
        jobs = lambda: [client.job(job_id)]  # noqa: E731
        trackers.track(
            client,
            [target],
            jobs,
            until_all_ended=True,
            poll_s=0.0,
        )
    assert capsys.readouterr().err.count("continues when it responds") == 1
    assert read_points(open_tensorboard(tmp_path), "reward") == REWARDS[:1]


def test_of_all_jobs_an_older_one_that_goes_on_is_found_until_it_has_ended(
    stack: Stack, http: Client
) -> None:
    older, deleted = (a_job_in(stack, "paused") for _ in range(2))
    newer, newest = (a_job_in(stack, "succeeded") for _ in range(2))
    with WeirClient(stack.url, KEY) as client:
        find = trackers.StartedJobs(client, num_newest=1)

        def find_mine() -> set[str]:
            return {job["id"] for job in find()} & {
                older,
                deleted,
                newer,
                newest,
            }

        assert find_mine() == {older, deleted, newest}
        take_up(stack, older, state="running")
        take_up(stack, deleted, state="failed", error="no")
        assert http.delete(f"{JOBS}/{deleted}").is_success
        assert find_mine() == {older, newest}
        take_up(stack, older, state="succeeded")
        assert find_mine() == {older, newest}
        assert find_mine() == {newest}
