"""What the tests of this folder share: task files, and a pool that computes in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.data import __main__ as command
from services.data import check
from services.grader.tools import Tools
from tests.unit.data.task_files import Files
from tests.unit.grader.pools import InlinePool, inline_tools


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, check):
        monkeypatch.setattr(module, "Pool", InlinePool)


@pytest.fixture
def tools() -> Tools:
    return inline_tools()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)
