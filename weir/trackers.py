"""The experiment trackers that a job can be written to, each by its own library.

A tracker of another kind is one class here and one line in `TRACKERS`. A library is imported when
its tracker is opened, and no sooner.
"""

from __future__ import annotations

import contextvars
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

Json = dict[str, Any]
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_PARAMETER = 1000, 100, 6000  # of a request to MLflow


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
            settings=wandb.Settings(**self._SETTINGS),
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
