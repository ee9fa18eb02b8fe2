"""Find the job that a person means: by its id, the beginning of its id, or its name."""

from __future__ import annotations

import re
from typing import Any

from weir.client import WeirClient, WeirError

_FULL_ID = re.compile(r"ftjob-[0-9a-f]{24}")
_PREFIX = "ftjob-"
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
    jobs = [job for job in weir.all_jobs(find=name) if _is_named(job, name)] if name else []
    if len(jobs) > 1:
        candidates = [f"{job['id']} ({job['status']})" for job in jobs[:_MAX_CANDIDATES]]
        more = f" and {len(jobs) - len(candidates)} more" if len(jobs) > _MAX_CANDIDATES else ""
        raise WeirError(f"{name!r} is the name of {', '.join(candidates)}{more}; give one id")
    return jobs[0]["id"] if jobs else name


def find_model(weir: WeirClient, name: str | None) -> str:
    """Return the name of a job's model, ``JOB`` or ``JOB@STEP``, as `find_job` does for ``JOB``."""
    job, at, step = (name or "").partition("@")
    return find_job(weir, job or None) + at + step


def _find_current(weir: WeirClient) -> str:
    jobs = weir.jobs(1, status="running") or weir.jobs(1)
    if not jobs:
        raise WeirError("there is no job yet; `weir run RECIPE` submits one")
    return jobs[0]["id"]


def _is_named(job: dict[str, Any], name: str) -> bool:
    job_id: str = job["id"]
    is_beginning = job_id.startswith(name) or job_id.removeprefix(_PREFIX).startswith(name)
    return is_beginning or job["weir"]["recipe"]["name"] == name
