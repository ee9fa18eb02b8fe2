"""A job that goes on for hundreds of steps needs no more in the end than it did before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from protocol.exchange import news

from tests.benchmarks.soak import grown, soak

pytestmark = [pytest.mark.redis, pytest.mark.stack]


def test_nothing_grows_with_the_steps_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "MAX_EVENTS", 100)

    rows = asyncio.run(soak(tmp_path, steps=300, tell=print))

    assert rows[-1].step > 200
    assert grown(rows) == []
