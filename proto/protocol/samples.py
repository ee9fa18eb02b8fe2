"""The sample store: what became of every response of a job, on disk below the job's folder.

Each step of a purpose has one Parquet file, with a row per response and one row without a response
per group that failed; `services.learner.durable.sample_rows` has the columns. A file is there whole
or not at all. An attempt that makes a step again supersedes what earlier attempts left of that step
and the steps after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.recipe import Purpose

SUFFIX = ".parquet"
RECIPE = "recipe.json"  # beside the files: what the groups were graded and valued by
TOKENIZER = "tokenizer.json"  # beside the files: a reader shows tokens without the model
USED = "used"  # the fate of a group that was trained on, or evaluated
_NAME = re.compile(rf"(\d+)-({'|'.join(Purpose)})-(\d+){re.escape(SUFFIX)}")


class StepFile(NamedTuple):
    step: int
    purpose: Purpose
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.step:06d}-{self.purpose}-{self.attempt:06d}{SUFFIX}"


def step_files(folder: Path) -> list[StepFile]:
    """The files of a store that no later attempt has superseded, by step."""
    found = sorted(all_files(folder))
    begun: dict[tuple[Purpose, int], int] = {}  # the first step of each attempt
    for file in found:
        begun.setdefault((file.purpose, file.attempt), file.step)

    def is_superseded(file: StepFile) -> bool:
        return any(
            purpose is file.purpose and attempt > file.attempt and step <= file.step
            for (purpose, attempt), step in begun.items()
        )

    return [file for file in found if not is_superseded(file)]


def all_files(folder: Path) -> Iterator[StepFile]:
    for path in folder.glob(f"*{SUFFIX}"):
        if name := _NAME.fullmatch(path.name):
            yield StepFile(int(name[1]), Purpose(name[2]), int(name[3]))
