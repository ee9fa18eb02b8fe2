"""How an attempt ends, where no learner runs."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from protocol.messages import Requested
from protocol.operations import SILENT

from services.learner.job.control import PauseRequested
from services.learner.job.run import Run

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("why", "asked_for"), [(f"{SILENT} for 60 s", [Requested.RUN]), ("", [])])
async def test_a_pause_that_a_disk_prevents_ends_unless_a_person_asked_for_it(
    why: str, asked_for: list[Requested]
) -> None:
    asked = list[Requested]()

    async def request_state(_: str, requested: Requested) -> None:
        asked.append(requested)

    async def save() -> None:
        raise OSError(errno.EROFS, "read-only")

    service: Any = SimpleNamespace(exchange=SimpleNamespace(request_state=request_state))
    learning: Any = SimpleNamespace(versions=SimpleNamespace(save=save))
    nothing: Any = SimpleNamespace(id="job")
    run = Run(service, *[nothing] * 5)
    with pytest.raises(OSError, match="read-only"):
        await run.save_to_pause(learning, PauseRequested(why))
    assert asked == asked_for
