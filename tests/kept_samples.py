"""What a job's sample store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from protocol.recipe import Purpose
from protocol.samples import step_files

from services.learner.durable.sample_rows import Row, read_groups


def all_samples(folder: Path) -> Iterator[list[Row]]:
    for file in step_files(folder):
        yield from read_groups(folder / file.name)


def fates(folder: Path, purpose: Purpose) -> dict[int, str]:
    firsts = [rows[0] for rows in all_samples(folder) if rows[0]["purpose"] == purpose]
    return {row["number"]: row["fate"] for row in sorted(firsts, key=lambda row: row["number"])}


def counted(fates: dict[int, str]) -> dict[str, int]:
    return dict(Counter(fates.values()))
