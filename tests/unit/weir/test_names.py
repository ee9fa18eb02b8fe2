"""The job that a person means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from tests.tables import table
from weir.client import WeirClient, WeirError
from weir.names import find_job, find_model

IDS = [f"ftjob-{digit * 24}" for digit in "abc"]


NAMES = ("twice", "once", "twice")
STATUSES = ("queued", "running", "failed")
# Newest first.
JOBS = [
    {"id": job_id, "status": status, "weir": {"recipe": {"name": name}}}
    for job_id, status, name in zip(IDS, STATUSES, NAMES, strict=True)
]


class Lists:
    """The lists of a client."""

    def __init__(self, jobs: Sequence[Any] = JOBS) -> None:
        self.listed = jobs

    def all_jobs(self, find: str) -> Iterator[Any]:
        return iter(self.listed)

    def jobs(self, limit: int, status: str | None = None) -> list[Any]:
        return [job for job in self.listed if status in (None, job["status"])][:limit]


def client(jobs: Sequence[Any] = JOBS) -> WeirClient:
    return cast(WeirClient, Lists(jobs))


@table("""
    name         | place
    None         | 1
    "once"       | 1
    "ftjob-cccc" | 2
    "aaaa"       | 0
""")
def test_a_job_is_found(name: str | None, place: int) -> None:
    assert find_job(client(), name) == IDS[place]


def test_the_newest_job_is_meant_if_none_runs() -> None:
    assert find_job(client(JOBS[2:]), None) == IDS[2]


def test_a_name_of_several_jobs_is_refused_with_them() -> None:
    with pytest.raises(WeirError, match=f"{IDS[0]} .queued., {IDS[2]} .failed."):
        find_job(client(), "twice")
    with pytest.raises(WeirError, match="weir run"):
        find_job(client([]), None)


def test_models_of_nobody_and_full_ids_stay() -> None:
    assert find_model(client(), "Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert find_model(client(), "once@20") == f"{IDS[1]}@20"
    assert find_model(client([]), f"{IDS[0]}@20") == f"{IDS[0]}@20"
