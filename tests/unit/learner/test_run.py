"""How an attempt ends, where no learner runs."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from protocol.messages import ErrorKind, JobError, Requested

from services.learner.job.control import PauseRequested
from services.learner.job.run import Run

pytestmark = pytest.mark.anyio


SILENT = JobError(message="silent for 60 s", kind=ErrorKind.SILENT_CLIENT)


@pytest.mark.parametrize(("error", "expected"), [(SILENT, [Requested.RUN]), (None, [])])
async def test_a_pause_that_a_disk_prevents_ends_unless_a_person_asked_for_it(
    error: JobError | None, expected: list[Requested]
) -> None:
    requests = list[Requested]()

    async def request_state(_: str, requested: Requested) -> None:
        requests.append(requested)

    async def save() -> None:
        raise OSError(errno.EROFS, "read-only")

    service: Any = SimpleNamespace(exchange=SimpleNamespace(request_state=request_state))
    learning: Any = SimpleNamespace(versions=SimpleNamespace(save=save))
    nothing: Any = SimpleNamespace(id="job")
    run = Run(service, *[nothing] * 5)
    with pytest.raises(OSError, match="read-only"):
        await run.save_before_pause(learning, PauseRequested(error))
    assert requests == expected
