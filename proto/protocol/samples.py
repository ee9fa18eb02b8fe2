"""The sample store: Parquet files of all responses of a job, in the job's folder.

Each step of a purpose has one file, with a row per response and a row per failed group.
`services.learner.durable.sample_rows` has the columns. Files are written atomically. An attempt
that repeats a step supersedes the files of earlier attempts from that step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.recipe import Purpose

SUFFIX = ".parquet"
RECIPE = "recipe.json"  # in the same folder: the settings of rewards and advantages
TOKENIZER = "tokenizer.json"  # in the same folder: readers need no model
USED = "used"  # the fate of a group in training or evaluation
_NAME = re.compile(rf"(\d+)-({'|'.join(Purpose)})-(\d+){re.escape(SUFFIX)}")


class StepFile(NamedTuple):
    step: int
    purpose: Purpose
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.step:06d}-{self.purpose}-{self.attempt:06d}{SUFFIX}"


def step_files(folder: Path) -> list[StepFile]:
    """Return the files that no later attempt supersedes, by step."""
    files = sorted(all_files(folder))
    first_steps: dict[tuple[Purpose, int], int] = {}  # by purpose and attempt
    for file in files:
        first_steps.setdefault((file.purpose, file.attempt), file.step)

    def is_superseded(file: StepFile) -> bool:
        return any(
            purpose is file.purpose and attempt > file.attempt and step <= file.step
            for (purpose, attempt), step in first_steps.items()
        )

    return [file for file in files if not is_superseded(file)]


def all_files(folder: Path) -> Iterator[StepFile]:
    for path in folder.glob(f"*{SUFFIX}"):
        if name := _NAME.fullmatch(path.name):
            yield StepFile(int(name[1]), Purpose(name[2]), int(name[3]))
