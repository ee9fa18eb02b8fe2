"""Where plans are made."""

import os
from pathlib import Path

import pytest

from tests.architecture.project import ROOT


@pytest.fixture
def in_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Paths are the project's, no model is downloaded, and the machine shows no GPU."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
