"""The demo's model with another config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.project import ROOT

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
Changed = Callable[..., Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    def change_config(**settings: Any) -> Path:
        folder = shutil.copytree(BASE_MODEL, tmp_path / "changed", dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))
        return folder

    return change_config
