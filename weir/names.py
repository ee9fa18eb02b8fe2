"""Find the job that a person means: by its id, the beginning of its id, or its name."""

from __future__ import annotations

import re
from typing import Any

from weir.client import WeirClient, WeirError

_FULL_ID = re.compile(r"ftjob-[0-9a-f]{24}")
_PREFIX = "ftjob-"
_MIN_DIGITS = 4  # of an id, so that a mistake matches no job
_MAX_CANDIDATES = 5


def find_job(weir: WeirClient, name: str | None) -> str:
    """Return the id of a job; without a name, of the running one, else of the newest.

    A name that is none of a job's is returned unchanged.

    Raises:
        WeirError: if there is no job, or the name is that of several.
    """
    if name is None:
        return _find_current(weir)
    if _FULL_ID.fullmatch(name):
        return name
    if not name:
        raise WeirError("the name of the job is empty; `weir jobs` lists them")
    jobs: list[dict[str, Any]] = []
    for job in weir.all_jobs(find=name):
        if _is_named(job, name):
            jobs.append(job)
    if len(jobs) > 1:
        raise WeirError(f"several jobs match {name!r}: {_describe(jobs)}; give one id")
    return jobs[0]["id"] if jobs else name


def find_model(weir: WeirClient, name: str | None) -> str:
    """Return the name of a job's model, ``JOB`` or ``JOB@STEP``, as `find_job` does for ``JOB``."""
    if name is not None:
        job, at, step = name.rpartition("@")
        if at and step.isdecimal():
            return find_job(weir, job) + at + step
    return find_job(weir, name)


def _describe(jobs: list[dict[str, Any]]) -> str:
    texts: list[str] = []
    for job in jobs[:_MAX_CANDIDATES]:
        texts.append(f"{job['id']} ({job['status']})")
    if len(jobs) > len(texts):
        texts.append(f"{len(jobs) - len(texts)} others")
    return ", ".join(texts)


def _find_current(weir: WeirClient) -> str:
    for query in ({"status": "running"}, {}):
        for job in weir.jobs(1, **query):
            return job["id"]
    raise WeirError("there is no job yet; `weir run RECIPE` submits one")


def _is_named(job: dict[str, Any], name: str) -> bool:
    job_id: str = job["id"]
    digits = job_id.removeprefix(_PREFIX)
    recipe_name = job["weir"]["recipe"]["name"]
    beginning = name.removeprefix(_PREFIX)
    is_beginning = len(beginning) >= _MIN_DIGITS and digits.startswith(beginning)
    return is_beginning or recipe_name == name
