"""A pool that computes in this process."""

import pytest

from services.data import check
from tests.unit.grader.pools import InlinePool


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "Pool", InlinePool)
