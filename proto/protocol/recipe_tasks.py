"""The tables of a recipe that name its task files, and choose among their tasks."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from protocol.names import PathText, Table

# Of a source or an evaluation: metrics begin with it.
PART_NAME = r"^[a-z][a-z0-9_-]{0,31}$"


class TaskFiles(Table):
    """The task files: paths in a recipe file, ids of uploaded files in a submitted recipe."""

    train: PathText = Field(min_length=1, description="the tasks to train on")
    held_out: PathText | None = Field(default=None, description="the tasks to evaluate on")


class Source(Table):
    """One of several files of tasks to train on."""

    name: str = Field(pattern=PART_NAME, description="the name in metrics")
    train: PathText = Field(min_length=1, description="the tasks of this source")
    weight: float = Field(
        default=1.0, gt=0, le=1e6, description="the share of requests, relative to other sources"
    )
    when_exhausted: Literal["repeat", "stop"] = Field(
        default="repeat",
        description="after its last task: shuffle and start over, or leave its share to the others",
    )


class Curriculum(Table):
    """The choice of tasks by their latest pass rates, see recipe.md."""

    retire_above: float | None = Field(
        default=None, gt=0, le=1, description="the pass rate from which a task is asked no more"
    )
    return_after: int | None = Field(
        default=None, ge=1, description="steps until a retired task is asked again; none: never"
    )
    easy: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="the share of requests for tasks with a pass rate of 1; none: these are asked "
        "like the others",
    )
    hard: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="the share of requests for tasks with a pass rate of 0; none: these are asked "
        "like the others",
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if self.retire_above is None and self.easy is None and self.hard is None:
            raise ValueError("give at least one of retire_above, easy and hard")
        if self.return_after is not None and self.retire_above is None:
            raise ValueError("return_after does nothing without retire_above; remove it")
        if self.easy and self.retire_above is not None and self.return_after is None:
            raise ValueError(
                "easy does nothing if retired tasks never return; add return_after, or remove easy"
            )
        if (self.easy or 0) + (self.hard or 0) >= 1:
            raise ValueError("easy + hard must be below 1: the rest is for all other tasks")
        return self


class Tasks(TaskFiles):
    """The task files: paths in a recipe file, ids of uploaded files in a submitted recipe."""

    train: PathText = Field(default="", description="the tasks to train on, if in one file")
    sources: tuple[Source, ...] = Field(
        default=(), max_length=64, description="several files to train on, instead of `train`"
    )
    curriculum: Curriculum | None = Field(
        default=None, description="settings of a curriculum; none: each task once an epoch"
    )

    @model_validator(mode="after")
    def _sources_never_run_dry(self) -> Self:
        if bool(self.train) == bool(self.sources):
            raise ValueError("give exactly one of train, a file, and sources, several files")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError("sources must have different names")
        if self.sources and all(source.when_exhausted == "stop" for source in self.sources):
            raise ValueError(
                "sources: one must have when_exhausted = 'repeat', so that no step lacks tasks; "
                "training.steps ends the job"
            )
        return self

    @property
    def train_files(self) -> dict[str, str]:
        """The files to train on by the name of their source; the name of ``train`` is empty."""
        return {source.name: source.train for source in self.sources} or {"": self.train}
