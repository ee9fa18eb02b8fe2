"""Events of a job reach the trackers once, read by the trackers' own readers."""

from __future__ import annotations

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
    Stack,
    a_job,
    an_event,
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

STEPS = 4
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    know(tmp_path, stack.url)
    return tmp_path


def step_numbers(step: int) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": step,
        "reward": step / 8,
        "gap": None,
        "groups": {"asked": 4 * step, "dropped": {"no signal": step}},
    }


def evaluation(step: int) -> dict[str, Any]:
    result = {"step": step, "accuracy": step / 16, "pass@4": 0.75, "per_task": {"t1": [1.0, 4]}}
    return {"kind": "evaluation", "step": step, "evaluation": result}


def pretrain(step: int) -> dict[str, Any]:
    return {"kind": "pretrain", "pretrain_step": step, "value_loss": 1.0 / step}


def tell_step(stack: Stack, job_id: str, step: int) -> None:
    tell(stack, an_event(job_id, step, data=step_numbers(step)))


def tell_story(stack: Stack, job_id: str) -> None:
    """The critic learns alone, then steps and two evaluations, and a warning."""
    data = [pretrain(1), pretrain(2), evaluation(0)]
    data += [step_numbers(step) for step in range(1, STEPS + 1)] + [evaluation(STEPS)]
    metrics = [an_event(job_id, number, data=values) for number, values in enumerate(data)]
    tell(stack, *metrics, an_event(job_id, 98), an_event(job_id, 99, level="warn"))


def expected(upto: int = STEPS) -> dict[str, list[tuple[int, float]]]:
    steps = range(1, upto + 1)
    return {
        "reward": [(step, step / 8) for step in steps],
        "groups/asked": [(step, 4.0 * step) for step in steps],
        "groups/dropped/no_signal": [(step, float(step)) for step in steps],
        "evaluation/accuracy": [(0, 0.0), (STEPS, STEPS / 16)],
        "evaluation/pass_at_4": [(0, 0.75), (STEPS, 0.75)],
        "pretrain/value_loss": [(1, 1.0), (2, 0.5)],
    }


def read_tensorboard(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], EventAccumulator]:
    runs = [path for path in folder.glob("*") if path.is_dir()]
    if not runs:
        return {}, EventAccumulator(str(folder))
    (run,) = runs
    read = EventAccumulator(str(run)).Reload()
    numbers = {
        tag: [(point.step, point.value) for point in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }
    return numbers, read


def read_text(read: EventAccumulator, tag: str) -> str:
    return read.Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def offline_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of every offline run, in the order of their starts."""
    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in read_records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
    return rows


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


def test_tensorboard_and_wandb_find_every_number_of_a_job(
    stack: Stack, http: httpx.Client, folder: Path
) -> None:
    job = a_job(http)
    tell_story(stack, job["id"])
    take_up(stack, job["id"], state="succeeded")
    to = ("--to", "tensorboard:runs", "--to", "wandb:maths")
    status, out, err = weir(folder, "track", job["id"], *to)
    assert status == 0, err
    assert "all its events are in tensorboard:runs, wandb:maths" in out

    numbers, read = read_tensorboard(folder / "runs")
    assert {tag: numbers[tag] for tag in expected()} == expected()
    assert set(numbers) == set(expected())
    assert read_text(read, "messages/warn") == "m99"
    assert read_text(read, "state") == "succeeded"
    assert '"groups_per_step": 4' in read_text(read, "recipe")
    assert read.PluginTagToContent("hparams")

    rows = offline_rows(folder)
    for name, points in expected().items():
        axis = "pretrain/step" if name.startswith("pretrain/") else "step"
        assert [(row[axis], row[name]) for row in rows if name in row] == points
    assert [row["_step"] for row in rows] == list(range(len(rows)))


def wait_until_reward(step: int, folder: Path) -> None:
    wait_until(lambda: (step, step / 8) in read_tensorboard(folder)[0].get("reward", []))


def test_a_tracker_that_was_killed_goes_on_and_writes_nothing_twice(
    stack: Stack, http: httpx.Client, folder: Path
) -> None:
    job = a_job(http)
    runs = folder / "runs"
    take_up(stack, job["id"], state="running")
    tell_step(stack, job["id"], 1)
    command = ("track", job["id"], "--to", "tensorboard:runs", "--to", "wandb:maths")
    process = start_weir(folder, *command)
    wait_until_reward(1, runs)
    (note,) = runs.glob("*.json")

    def is_noted() -> bool:
        sizes = json.loads(note.read_text())["place"]["files"]
        return all((note.with_suffix("") / name).stat().st_size == n for name, n in sizes.items())

    wait_until(is_noted)
    noted = note.read_bytes()
    tell_step(stack, job["id"], 2)
    wait_until_reward(2, runs)
    process.kill()
    process.communicate(timeout=120)
    note.write_bytes(noted)  # as if it had been killed between the points and its note of them

    for step in range(3, STEPS + 1):
        tell_step(stack, job["id"], step)
    take_up(stack, job["id"], state="failed", error="no")
    status, _, err = weir(folder, *command)
    assert status == 0, err
    numbers, read = read_tensorboard(runs)
    assert numbers["reward"] == expected()["reward"]
    assert read_text(read, "state") == "failed"
    rows = offline_rows(folder)
    assert [(row["step"], row["reward"]) for row in rows] == expected()["reward"]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3]


def test_all_jobs_are_written_those_to_come_among_them_until_it_is_told_to_stop(
    stack: Stack, http: httpx.Client, folder: Path
) -> None:
    runs = folder / "runs"
    first = a_job(http)
    waiting = a_job(http)
    take_up(stack, first["id"], state="running")
    tell_step(stack, first["id"], 1)
    process = start_weir(folder, "track", "--all", "--to", "tensorboard:runs")
    wait_until(lambda: list(runs.glob(f"*{first['id']}.json")))
    assert not list(runs.glob(f"*{waiting['id']}*"))
    take_up(stack, waiting["id"], state="succeeded")
    tell_step(stack, waiting["id"], 1)
    wait_until(lambda: list(runs.glob(f"*{waiting['id']}.json")))
    process.terminate()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
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
    stack: Stack, http: httpx.Client, tmp_path: Path, capsys: Capsys
) -> None:
    job = a_job(http)
    tell_step(stack, job["id"], 1)
    take_up(stack, job["id"], state="succeeded")
    with WeirClient(stack.url, KEY, transport=Away()) as client:
        target = trackers.Target("tensorboard", str(tmp_path))
        jobs = lambda: [client.job(job["id"])]  # noqa: E731
        trackers.track(client, [target], jobs, until_all_ended=True, poll_s=0.0)
    assert capsys.readouterr().err.count("continues when it responds") == 1
    assert read_tensorboard(tmp_path)[0]["reward"] == [(1, 0.125)]


def test_of_all_jobs_an_older_one_that_goes_on_is_found_until_it_has_ended(
    stack: Stack, http: httpx.Client
) -> None:
    older, deleted, newer, newest = (submit_job(http) for _ in range(4))
    for job_id in (older, deleted):
        take_up(stack, job_id, state="paused")
    for job_id in (newer, newest):
        take_up(stack, job_id, state="succeeded")
    with WeirClient(stack.url, KEY) as client:
        find = trackers.StartedJobs(client, num_newest=1)

        def found() -> dict[str, str]:
            mine = (older, deleted, newer, newest)
            return {job["id"]: job["status"] for job in find() if job["id"] in mine}

        assert found() == {older: "paused", deleted: "paused", newest: "succeeded"}
        take_up(stack, older, state="running")
        take_up(stack, deleted, state="failed", error="no")
        assert http.delete(f"{JOBS}/{deleted}").is_success
        assert found() == {older: "running", newest: "succeeded"}
        take_up(stack, older, state="succeeded")
        assert found() == {older: "succeeded", newest: "succeeded"}
        assert found() == {newest: "succeeded"}
