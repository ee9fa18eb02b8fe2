"""``weir track``: write the events of jobs to experiment trackers, each event once.

A tracker of another kind is one class here and one line in `TRACKERS`. Its library is imported when
it is opened. A file records its position, so that a restarted process continues from there.
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
# MLflow's limits for a request.
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100
_MAX_PARAMETER_CHARS = 6000
_FINAL = {"succeeded", "failed", "cancelled"}
_POLL_S = 2.0
_BATCH_EVENTS = 500
# A tracker that is not durable is closed after this many events. A killed process has to write
# them again, so the gateway must still have them.
_MAX_EVENTS_AT_RISK = 2000
_NUM_NEWEST_JOBS = 100
_NOT_FOUND = 404
_GATEWAY_AWAY = {None, 500, 502, 503, 504}


@dataclass(frozen=True)
class Entry:
    """The content of an event: numbers at a step, or a warning.

    ``created_at`` is in seconds since 1970, ``axis`` names what ``step`` counts: "step" or
    "pretrain/step".
    """

    created_at: float
    axis: str
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
        """The recipe's settings that are not None, by dotted names."""
        return dict(_flatten(self.recipe))


class Tracker(ABC):
    """A run in a tracker; ``position`` is that of the last process, or {}.

    ``needs`` are the module that the tracker imports and its package. A durable tracker keeps what
    was written when the process is killed.
    """

    needs: ClassVar[tuple[str, str]]
    is_durable: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, where: str, run: Run, position: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> None: ...

    def position(self) -> Json:
        """Return where another process continues; unless durable, where it starts again."""
        return {}

    @abstractmethod
    def close(self, status: str | None) -> None:
        """Close a run that has ended with a status, or continues later (None)."""


class TensorBoard(Tracker):
    """Event files in a folder per job; each process writes a new one."""

    needs = "tensorboardX", "tensorboardX"

    def __init__(self, where: str, run: Run, position: Mapping[str, Any]) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._summary = summary
        self._event = vars(event_pb2)["Event"]
        self._folder = Path(where) / run.file_name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._step = 0
        sizes = position.get("files", {})
        self._truncate_files(sizes)
        # The suffix tells two files of the same second apart.
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
                message = self._summary.text(f"messages/{entry.level}", entry.text)
                self._add(message, entry.created_at, self._step)
        self._writer.flush()

    def position(self) -> Json:
        return {"files": {path.name: path.stat().st_size for path in self._files()}}

    def close(self, status: str | None) -> None:
        if status is not None:
            self._add(self._summary.text("state", status), None, self._step)
        self._writer.close()

    def _files(self) -> Iterator[Path]:
        return self._folder.glob("events.out.tfevents.*")

    def _truncate_files(self, sizes: Mapping[str, int]) -> None:
        """Remove the events that a killed process wrote after its last position."""
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
    """A run of W&B, online or offline as ``WANDB_MODE`` says.

    W&B writes a file when it has enough rows, or at its end. The file of a killed process is
    deleted and written again; W&B ignores rows that it already has.
    """

    needs = "wandb", "wandb"
    is_durable = False
    # This machine is not the one that trains.
    _SETTINGS: ClassVar[Json] = {
        "console": "off",
        "disable_code": True,
        "disable_git": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
    }

    def __init__(self, where: str, run: Run, position: Mapping[str, Any]) -> None:
        import wandb

        entity, _, project = where.rpartition("/")
        self._alert_level = wandb.AlertLevel  # pyright: ignore[reportAttributeAccessIssue]
        unfinished = position.get("open")
        if unfinished:
            shutil.rmtree(unfinished, ignore_errors=True)
        self._row = position.get("row", 0)
        key = read_variable(os.environ, "WANDB_API_KEY")
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=run.job_id,
            name=run.name,
            config=dict(run.recipe),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**self._SETTINGS, api_key=key),
        )
        self._position = {"row": self._row, "open": str(Path(self._run.dir).parent)}
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

    def position(self) -> Json:
        return self._position

    def close(self, status: str | None) -> None:
        if status is not None:
            self._run.summary["state"] = status
        self._run.finish(exit_code=0 if status in {None, "succeeded"} else 1)
        self._position = {"row": self._row}


class MLflow(Tracker):
    """A run on the MLflow server of a URI, or of ``MLFLOW_TRACKING_URI``."""

    needs = "mlflow", "mlflow-skinny"
    _STATUS: ClassVar[Mapping[str, str]] = {"succeeded": "FINISHED", "cancelled": "KILLED"}

    def __init__(self, where: str, run: Run, position: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        is_uri = "://" in where
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=where if is_uri else None)
        self._run_id = self._find_run(run, "weir" if is_uri else where)
        self._client.update_run(self._run_id, status="RUNNING")
        parameters = [
            Param(name, str(value)[:_MAX_PARAMETER_CHARS]) for name, value in run.settings.items()
        ]
        for batch in _batches(parameters, _MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=batch)

    def write(self, entries: Sequence[Entry]) -> None:
        metrics: list[Any] = []
        for entry in entries:
            time_ms = int(entry.created_at * 1000)
            for name, value in entry.numbers.items():
                metrics.append(self._metric(name, value, time_ms, entry.step))
        for batch in _batches(metrics, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=batch)

    def close(self, status: str | None) -> None:
        if status is not None:
            self._client.set_terminated(self._run_id, self._STATUS.get(status, "FAILED"))

    def _find_run(self, run: Run, name: str) -> str:
        """Return the id of the run in an experiment; both are created if missing."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            experiment_id = self._client.create_experiment(name)
        else:
            experiment_id = experiment.experiment_id
        runs = self._client.search_runs([experiment_id], f"tags.weir_job = '{run.job_id}'")
        if runs:
            return runs[0].info.run_id
        tags = {"weir_job": run.job_id}
        start_ms = int(run.created_at * 1000)
        return self._client.create_run(experiment_id, start_ms, tags, run_name=run.name).info.run_id


class Trackio(Tracker):
    """A run of trackio, below ``TRACKIO_DIR``, which stores a row after half a second."""

    needs = "trackio", "trackio"

    def __init__(self, where: str, run: Run, position: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._alert_level = trackio.AlertLevel
        # In its own context, since trackio ends the run of the current one.
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


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _flatten(child, f"{path}.{name}" if path else name)
    elif isinstance(value, str | int | float | bool):
        yield path, value
    elif value is not None:
        yield path, json.dumps(value)


def _batches(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


class BadTarget(Exception):
    """The target is no tracker, or its library is not installed; the text names the remedy."""


@dataclass(frozen=True)
class Target:
    """A kind of tracker, and its folder, project or server."""

    kind: str
    where: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse ``tensorboard:DIR`` and the like.

        Raises:
            BadTarget: if there is no such tracker, or its library is missing.
        """
        kind, _, where = text.partition(":")
        if kind not in TRACKERS or not where:
            kinds = ", ".join(f"{name}:…" for name in TRACKERS)
            raise BadTarget(f"--to {text!r} is no tracker; give one of {kinds}")
        module, package = TRACKERS[kind].needs
        if find_spec(module) is None:
            raise BadTarget(f"--to {text}: {module} is not installed; `pip install {package}`")
        return cls(kind, where)

    @property
    def notes_folder(self) -> Path:
        if self.kind == "tensorboard":
            return Path(self.where)
        # A file name must not show a password.
        where = re.sub(r"(?<=://)[^/@]*@", "", self.where)
        return home_dir(os.environ) / "trackers" / self.kind / re.sub(r"[^\w.-]+", "-", where)


class Track:
    """A job in a tracker, which is opened when there is something to write.

    The note holds the last event that was written, and the tracker's position.
    """

    def __init__(self, target: Target, job: Json) -> None:
        self._target = target
        self._run = Run(job["id"], job["weir"]["recipe"], job["created_at"])
        self._note_path = target.notes_folder / f"{self._run.file_name}.json"
        self._note: Json = {"after": None, "ended": False, "place": {}}
        if self._note_path.is_file():
            self._note = json.loads(self._note_path.read_text(encoding="utf-8"))
        self._after: str | None = self._note["after"]
        self._tracker: Tracker | None = None
        self._num_written = 0

    def resume(self, weir: WeirClient, status: str) -> None:
        """Write the new events of the job, which had this status before they were read."""
        has_ended = status in _FINAL
        if has_ended and self._note["ended"]:
            return
        events = weir.past_events(self._run.job_id, after=self._after)
        try:
            while batch := list(islice(events, _BATCH_EVENTS)):
                self._write(batch)
        except WeirError as error:
            if error.status != _NOT_FOUND:
                raise
            # The job was deleted after it had been listed.
            self.leave()
            return
        if has_ended and self._after is not None:
            self._open_tracker().close(status)
            self._save_note(after=self._after, ended=True)
            self._tracker = None

    def leave(self) -> None:
        if self._tracker is not None:
            self._tracker.close(None)
            self._save_note(after=self._after)
            self._tracker = None

    def _write(self, batch: Sequence[Json]) -> None:
        tracker = self._open_tracker()
        entries = [read_entry(event) for event in batch]
        tracker.write([entry for entry in entries if entry])
        self._after = batch[-1]["id"]
        self._num_written += len(batch)
        if tracker.is_durable:
            self._save_note(after=self._after)
        elif self._num_written >= _MAX_EVENTS_AT_RISK:
            self.leave()

    def _open_tracker(self) -> Tracker:
        if self._tracker is None:
            tracker_class = TRACKERS[self._target.kind]
            self._tracker = tracker_class(self._target.where, self._run, self._note["place"])
            self._num_written = 0
            self._save_note(ended=False)
        return self._tracker

    def _save_note(self, **changes: Any) -> None:
        position = self._tracker.position() if self._tracker else {}
        self._note = {**self._note, **changes, "place": position}
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
    poll_s: float = _POLL_S,
) -> None:
    """Write the events of jobs to every target, forever or until the jobs have ended.

    Waits for: new events. Unblocked by: the gateway, which it asks every two seconds, even while it
    does not respond; or an interrupt, after which another call continues.

    Raises:
        WeirError: if the gateway refuses.
    """
    tracks: dict[tuple[Target, str], Track] = {}
    # Jobs of an interrupted round stay here.
    unwritten: dict[str, Json] = {}
    is_away = False
    try:
        while True:
            try:
                unwritten |= {job["id"]: job for job in find_jobs()}
                for job, target in product(unwritten.values(), targets):
                    key = target, job["id"]
                    tracks[key] = tracks.get(key) or Track(target, job)
                    tracks[key].resume(weir, job["status"])
                if until_all_ended and all(job["status"] in _FINAL for job in unwritten.values()):
                    return
                unwritten = {}
                is_away = False
            except WeirError as error:
                if error.status not in _GATEWAY_AWAY:
                    raise
                if not is_away:
                    print(f"weir: {error}; tracking continues when it responds", file=sys.stderr)
                is_away = True
            time.sleep(poll_s)
    finally:
        for job_track in tracks.values():
            job_track.leave()


@dataclass
class StartedJobs:
    """Finds every job that has started and not ended, and the newest ended ones.

    The first call reads all jobs, later ones the newest and those that had not ended.
    """

    weir: WeirClient
    num_newest: int = _NUM_NEWEST_JOBS
    _unfinished: set[str] | None = None
    _listed: set[str] = field(default_factory=set)

    def __call__(self) -> list[Json]:
        """Return the jobs.

        Raises:
            WeirError: if the gateway refuses, or does not respond.
        """
        is_first = self._unfinished is None
        jobs: dict[str, Json] = {}
        listed: set[str] = set()
        for index, job in enumerate(self.weir.all_jobs(), start=1):
            job_id = job["id"]
            is_new = not is_first and job_id not in self._listed
            if index <= self.num_newest or is_new or job["status"] not in _FINAL:
                jobs[job_id] = job
            listed.add(job_id)
            # The rest was listed before; stop before another page is requested.
            if not is_first and not is_new and index >= self.num_newest:
                break
        self._listed |= listed
        for job_id in (self._unfinished or set()) - jobs.keys():
            try:
                jobs[job_id] = self.weir.job(job_id)
            except WeirError as error:
                if error.status != _NOT_FOUND:
                    raise
        self._unfinished = {job_id for job_id, job in jobs.items() if job["status"] not in _FINAL}
        return [job for job in jobs.values() if job["status"] != "queued"]


def read_entry(event: Mapping[str, Any]) -> Entry | None:
    """Return the content of an event for a tracker; None if it has none."""
    data = event["data"]
    created_at = event["created_at"]
    axis = "step"
    step = data.get("step", 0)
    values = data
    prefix = ""
    if "other_evaluation" in data:
        values = data["other_evaluation"]
        prefix = f"evaluation/{values['name']}/"
    elif event["type"] == "message":
        if event["level"] == "info":
            return None
        return Entry(created_at, "step", 0, {}, event["level"], event["message"])
    elif "evaluation" in data:
        values = data["evaluation"]
        prefix = "evaluation/"
    elif "pretrain_step" in data:
        axis = "pretrain/step"
        step = data["pretrain_step"]
        prefix = "pretrain/"
    numbers = dict(_numbers(values, prefix))
    for name in ("step", f"{prefix}step", "pretrain/pretrain_step"):
        numbers.pop(name, None)
    return Entry(created_at, axis, step, numbers)


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Yield every number by its path, in characters that every tracker accepts."""
    for name, value in values.items():
        path = prefix + re.sub(r"[^\w.-]", "_", name.replace("@", "_at_"))
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, float(value)
