"""Each rank asks for the GPU of its own, without a GPU to ask for."""

import deepspeed
import pytest
import torch

from services.learner.training.engine import device_of_rank, init_ranks
from tests.architecture.project import ROOT

pytestmark = pytest.mark.engine


def test_rank_3_takes_gpu_3_before_it_joins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.distributed, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(
        deepspeed, "init_distributed", lambda dist_backend, verbose: calls.append(dist_backend)
    )
    init_ranks()
    assert calls == [torch.device("cuda", 3), "nccl"]
    assert device_of_rank() == torch.device("cuda", 3)


def test_without_a_gpu_a_rank_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of_rank() == torch.device("cpu")


def test_nothing_else_in_the_services_chooses_a_device() -> None:
    naming = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "services").rglob("*.py")
        if '"cuda' in path.read_text() or ".cuda(" in path.read_text()
    ]
    assert naming == ["services/learner/training/engine.py"]
