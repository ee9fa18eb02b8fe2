"""``weir track``: write the events of jobs to experiment trackers, each event once.

A tracker of another kind is one class here and one line in `TRACKERS`. A library is imported when
its tracker is opened, and no sooner. What a tracker has is noted in a file, so that a process that
is started again continues from there.
"""

from __future__ import annotations

import contextvars
import json
import os
import re
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any, ClassVar

from services.chassis.deployment import home_dir, read_variable
from weir.client import WeirClient, WeirError

Json = dict[str, Any]
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_PARAMETER = 1000, 100, 6000  # of a request to MLflow
_FINAL = {"succeeded", "failed", "cancelled"}
_PAUSE_S = 2.0
_BATCH = 500  # events
_MOST_AT_RISK = 2000  # events that a killed process may have to write again: they must be there
_NEWEST = 100  # jobs
_NOT_FOUND = 404
_GATEWAY_IS_AWAY = {None, 500, 502, 503, 504}


@dataclass(frozen=True)
class Entry:
    """What one event says: numbers at a step, or a warning in words."""

    created_at: float  # seconds since 1970
    axis: str  # what ``step`` counts: "step", or "pretrain/step"
    step: int
    numbers: Mapping[str, float]
    level: str = "info"
    text: str = ""


@dataclass(frozen=True)
class Run:
    job_id: str
    recipe: Mapping[str, Any]
    created_at: float

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.recipe.get("name"), self.job_id)))

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.name)

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """The recipe in one level, with dotted names; what is not set is left out."""
        return dict(_leaves(self.recipe))


class Tracker(ABC):
    """One run in one tracker. Its constructor takes what its last ``place`` was, {} if none."""

    needs: ClassVar[tuple[str, str]]  # the module that it imports, the package that has it
    is_durable: ClassVar[bool] = True  # whether what was written stays when the process is killed

    @abstractmethod
    def __init__(self, where: str, run: Run, place: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> None: ...
    def place(self) -> Json:
        """What lets another process continue here, or, unless it is durable, begin here again."""
        return {}

    @abstractmethod
    def close(self, status: str | None) -> None:
        """Leave the run, which has ended with this status, or goes on (None)."""


class TensorBoard(Tracker):
    """Event files in a folder per job; every start writes one of its own."""

    needs = "tensorboardX", "tensorboardX"

    def __init__(self, where: str, run: Run, place: Mapping[str, Any]) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._summary, self._event = summary, vars(event_pb2)["Event"]
        self._folder = Path(where) / run.file_name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._step = 0
        sizes = place.get("files", {})
        self._cut(sizes)
        # A name holds a time in seconds, and two starts may come in one.
        self._writer = EventsWriter(str(self._folder / "events"), f".{len(sizes)}")
        if not sizes:
            recipe = json.dumps(run.recipe, indent=2).replace("\n", "\n    ")
            self._add(summary.text("recipe", f"    {recipe}"), run.created_at)
            for part in summary.hparams(run.settings, {"reward": 0.0}):
                self._add(part, run.created_at)
        self._writer.flush()

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._step = entry.step or self._step
            for name, value in entry.numbers.items():
                self._add(self._summary.scalar(name, value), entry.created_at, entry.step)
            if entry.text:
                said = self._summary.text(f"messages/{entry.level}", entry.text)
                self._add(said, entry.created_at, self._step)
        self._writer.flush()

    def place(self) -> Json:
        return {"files": {path.name: path.stat().st_size for path in self._files()}}

    def close(self, status: str | None) -> None:
        if status is not None:
            self._add(self._summary.text("state", status), None, self._step)
        self._writer.close()

    def _files(self) -> Iterator[Path]:
        return self._folder.glob("events.out.tfevents.*")

    def _cut(self, sizes: Mapping[str, int]) -> None:
        """Take back what a killed process wrote and did not tell."""
        for path in self._files():
            if path.name in sizes:
                os.truncate(path, min(sizes[path.name], path.stat().st_size))
            else:
                path.unlink()

    def _add(self, summary: Any, wall_time: float | None, step: int = 0) -> None:
        event = self._event(summary=summary, step=step)
        if wall_time is not None:
            event.wall_time = wall_time
        self._writer.write_event(event)


class WandB(Tracker):
    """A run of W&B, online or offline as its own variables say (``WANDB_MODE``).

    It writes a file when enough has come, or at its end. What a killed process has left is deleted
    and written again; W&B itself refuses the rows of it that it has already.
    """

    needs = "wandb", "wandb"
    is_durable = False
    _SETTINGS: ClassVar[Json] = {
        "console": "off",
        "disable_code": True,
        "disable_git": True,
        "x_disable_meta": True,
        "x_disable_stats": True,  # this machine is not the one that trains
    }

    def __init__(self, where: str, run: Run, place: Mapping[str, Any]) -> None:
        import wandb

        entity, _, project = where.rpartition("/")
        self._alert_level = wandb.AlertLevel  # pyright: ignore[reportAttributeAccessIssue]
        if left := place.get("open"):
            shutil.rmtree(left, ignore_errors=True)
        self._row = place.get("row", 0)
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=run.job_id,
            name=run.name,
            config=dict(run.recipe),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                **self._SETTINGS, api_key=read_variable(os.environ, "WANDB_API_KEY")
            ),
        )
        self._place = {"row": self._row, "open": str(Path(self._run.dir).parent)}
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric("pretrain/*", step_metric="pretrain/step")

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.numbers:
                row = {**entry.numbers, entry.axis: entry.step, "_timestamp": entry.created_at}
                self._run.log(row, step=self._row, commit=True)
                self._row += 1
            if entry.text:
                level = self._alert_level(entry.level.upper())
                self._run.alert(entry.level, entry.text, level=level, wait_duration=0)

    def place(self) -> Json:
        return self._place

    def close(self, status: str | None) -> None:
        if status is not None:
            self._run.summary["state"] = status
        self._run.finish(exit_code=0 if status in {None, "succeeded"} else 1)
        self._place = {"row": self._row}


class MLflow(Tracker):
    """A run on an MLflow server: that of a URI, or of ``MLFLOW_TRACKING_URI``."""

    needs = "mlflow", "mlflow-skinny"
    _STATUS: ClassVar[Mapping[str, str]] = {"succeeded": "FINISHED", "cancelled": "KILLED"}

    def __init__(self, where: str, run: Run, place: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        uri, name = (where, "weir") if "://" in where else (None, where)
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._run_id = self._run_of(run, experiment)
        self._client.update_run(self._run_id, status="RUNNING")
        values = [Param(n, str(v)[:_LONGEST_PARAMETER]) for n, v in run.settings.items()]
        for some in _in_parts(values, _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=some)

    def write(self, entries: Sequence[Entry]) -> None:
        points = [
            self._metric(name, value, int(entry.created_at * 1000), entry.step)
            for entry in entries
            for name, value in entry.numbers.items()
        ]
        for some in _in_parts(points, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def close(self, status: str | None) -> None:
        if status is not None:
            self._client.set_terminated(self._run_id, self._STATUS.get(status, "FAILED"))

    def _run_of(self, run: Run, experiment: str) -> str:
        found = self._client.search_runs([experiment], f"tags.weir_job = '{run.job_id}'")
        if found:
            return found[0].info.run_id
        tags, began = {"weir_job": run.job_id}, int(run.created_at * 1000)
        made = self._client.create_run(experiment, began, tags, run_name=run.name)
        return made.info.run_id


class Trackio(Tracker):
    """A run of trackio, below ``TRACKIO_DIR``, which has a row half a second after it was told."""

    needs = "trackio", "trackio"

    def __init__(self, where: str, run: Run, place: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._alert_level = trackio.AlertLevel
        # trackio ends the run that its context holds when another begins.
        self._run = contextvars.Context().run(
            trackio.init,
            where,
            name=run.name,
            config=dict(run.recipe),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.numbers:
                self._run.log(dict(entry.numbers), step=entry.step)
            if entry.text:
                self._run.alert(entry.level, entry.text, self._alert_level(entry.level))

    def close(self, status: str | None) -> None:
        if status is not None:
            self._run.alert("state", status, self._alert_level("info"))
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, str | int | float | bool):
        yield path, value
    elif value is not None:
        yield path, json.dumps(value)


def _in_parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[begin : begin + most] for begin in range(0, len(items), most))


class BadTarget(Exception):
    """There is no such tracker, or its library is not installed; the text names the remedy."""


@dataclass(frozen=True)
class Target:
    """A tracker, and what it calls the place where runs are kept: a folder, a project."""

    kind: str
    where: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``tensorboard:DIR`` and the like.

        Raises:
            BadTarget: if it is none, or the tracker's library is missing.
        """
        kind, _, where = text.partition(":")
        if kind not in TRACKERS or not where:
            known = ", ".join(f"{name}:…" for name in TRACKERS)
            raise BadTarget(f"--to {text!r}: say where runs go, as one of {known}")
        module, package = TRACKERS[kind].needs
        if find_spec(module) is None:
            raise BadTarget(f"--to {text}: {module} is not installed; `pip install {package}`")
        return cls(kind, where)

    @property
    def notes(self) -> Path:
        if self.kind == "tensorboard":
            return Path(self.where)
        where = re.sub(r"(?<=://)[^/@]*@", "", self.where)  # a password is for nobody's eyes
        return home_dir(os.environ) / "trackers" / self.kind / re.sub(r"[^\w.-]+", "-", where)


class Track:
    """One job in one tracker, which is opened when there is something to write."""

    def __init__(self, target: Target, job: Json) -> None:
        self._target = target
        self._run = Run(job["id"], job["weir"]["recipe"], job["created_at"])
        self._note_path = target.notes / f"{self._run.file_name}.json"
        self._note: Json = {"after": None, "ended": False, "place": {}}
        if self._note_path.is_file():
            self._note = json.loads(self._note_path.read_text(encoding="utf-8"))
        self._after: str | None = self._note["after"]  # the last event that was written
        self._tracker: Tracker | None = None
        self._written = 0  # events, since it was opened

    def go_on(self, weir: WeirClient, status: str) -> None:
        """Write what is new of the job, which had this status before."""
        if self._note["ended"] and status in _FINAL:
            return
        events = weir.past_events(self._run.job_id, after=self._after)
        try:
            while batch := list(islice(events, _BATCH)):
                self._write(batch)
        except WeirError as error:
            if error.status != _NOT_FOUND:
                raise
            self.leave()  # the job was deleted after it had been listed
            return
        if status in _FINAL and self._after is not None:
            self._opened().close(status)
            self._keep_note(after=self._after, ended=True)
            self._tracker = None

    def leave(self) -> None:
        if self._tracker is not None:
            self._tracker.close(None)
            self._keep_note(after=self._after)
            self._tracker = None

    def _write(self, batch: Sequence[Json]) -> None:
        tracker = self._opened()
        tracker.write([entry for event in batch if (entry := entry_of(event))])
        self._after = batch[-1]["id"]
        self._written += len(batch)
        if tracker.is_durable:
            self._keep_note(after=self._after)
        elif self._written >= _MOST_AT_RISK:
            self.leave()

    def _opened(self) -> Tracker:
        if self._tracker is None:
            opened = TRACKERS[self._target.kind]
            self._tracker = opened(self._target.where, self._run, self._note["place"])
            self._written = 0
            self._keep_note(ended=False)
        return self._tracker

    def _keep_note(self, **changes: Any) -> None:
        place = self._tracker.place() if self._tracker else {}
        self._note = {**self._note, **changes, "place": place}
        unfinished = self._note_path.with_suffix(".unfinished")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(self._note), encoding="utf-8")
        unfinished.replace(self._note_path)


def track(
    weir: WeirClient,
    targets: Sequence[Target],
    find_jobs: Callable[[], Iterable[Json]],
    *,
    until_all_ended: bool,
    pause_s: float = _PAUSE_S,
) -> None:
    """Write what jobs tell to every target, for ever or until they have ended.

    Waits for: new events. Unblocked by: the gateway, which it asks every two seconds, however long
    that is away; or an interrupt, after which another call goes on where this one was.

    Raises:
        WeirError: if the gateway refuses.
    """
    tracks: dict[tuple[Target, str], Track] = {}
    unwritten: dict[str, Json] = {}  # also of a round that the gateway's absence broke off
    is_away = False
    try:
        while True:
            try:
                unwritten |= {job["id"]: job for job in find_jobs()}
                for job, target in product(unwritten.values(), targets):
                    key = target, job["id"]
                    tracks[key] = tracks.get(key) or Track(target, job)
                    tracks[key].go_on(weir, job["status"])
                if until_all_ended and all(job["status"] in _FINAL for job in unwritten.values()):
                    return
                unwritten, is_away = {}, False
            except WeirError as error:
                if error.status not in _GATEWAY_IS_AWAY:
                    raise
                if not is_away:
                    print(f"weir: {error}; this goes on when it answers", file=sys.stderr)
                is_away = True
            time.sleep(pause_s)
    finally:
        for one in tracks.values():
            one.leave()


@dataclass
class BegunJobs:
    """Finds every job that has begun and not ended, and the newest of those that have ended.

    The first call looks at all jobs, the later ones at the newest and at those that had not ended.
    """

    weir: WeirClient
    newest: int = _NEWEST
    _unfinished: set[str] | None = None
    _seen: set[str] = field(default_factory=set)

    def __call__(self) -> list[Json]:
        """The jobs.

        Raises:
            WeirError: if the gateway refuses, or does not answer.
        """
        found: dict[str, Json] = {}
        is_first, seen = self._unfinished is None, set[str]()
        for place, job in enumerate(self.weir.all_jobs()):
            is_new = job["id"] not in self._seen
            if not (is_first or is_new or place < self.newest):
                break
            seen.add(job["id"])
            if place < self.newest or (is_new and not is_first) or job["status"] not in _FINAL:
                found[job["id"]] = job
            if not is_first and not is_new and place + 1 >= self.newest:
                break  # before another page is asked for
        self._seen |= seen
        for job_id in (self._unfinished or set()) - found.keys():
            try:
                found[job_id] = self.weir.job(job_id)
            except WeirError as error:
                if error.status != _NOT_FOUND:
                    raise
        self._unfinished = {job_id for job_id, job in found.items() if job["status"] not in _FINAL}
        return [job for job in found.values() if job["status"] != "queued"]


def entry_of(event: Mapping[str, Any]) -> Entry | None:
    """What an event says to a tracker; None if that is nothing."""
    data, created_at = event["data"], event["created_at"]
    other = data.get("other_evaluation")
    if event["type"] == "message" and other is None:
        if event["level"] == "info":
            return None
        return Entry(created_at, "step", 0, {}, event["level"], event["message"])
    if other is not None:
        numbers, axis, prefix = other, "step", f"evaluation/{other['name']}/"
    elif "evaluation" in data:
        numbers, axis, prefix = data["evaluation"], "step", "evaluation/"
    elif "pretrain_step" in data:
        numbers, axis, prefix = data, "pretrain/step", "pretrain/"
    else:
        numbers, axis, prefix = data, "step", ""
    step = data.get("pretrain_step", data.get("step", 0))
    found = dict(_numbers(numbers, prefix))
    for name in ("step", f"{prefix}step", "pretrain/pretrain_step"):
        found.pop(name, None)
    return Entry(created_at, axis, step, found)


def _numbers(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Every number below ``data`` by its path; no tracker refuses the characters of these."""
    for name, value in data.items():
        path = prefix + re.sub(r"[^\w.-]", "_", name.replace("@", "_at_"))
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, float(value)
