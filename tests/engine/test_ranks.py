"""Ranks that share memory and trouble: what one meets, rank 0 hears of and the others survive."""

from __future__ import annotations

import json
from pathlib import Path

import deepspeed
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.learner.algorithms import UnknownName
from services.learner.training.engine import device_of_rank, init_ranks
from services.learner.training.ranks import _dump_error, _load_error
from tests.architecture.project import ROOT
from tests.engine import trouble
from tests.engine.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
OF_GLOO = 8  # bytes per parameter that two threads of gloo free late, or in time


def test_rank_3_takes_gpu_3_of_its_node_before_it_joins_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of_rank() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.distributed, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(
        deepspeed, "init_distributed", lambda dist_backend, verbose: calls.append(dist_backend)
    )
    init_ranks()
    assert calls == [torch.device("cuda", 3), "nccl"]


def test_nothing_else_in_the_services_chooses_a_device() -> None:
    naming = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "services").rglob("*.py")
        if '"cuda' in path.read_text() or ".cuda(" in path.read_text()
    ]
    assert naming == ["services/learner/training/engine.py"]


def test_in_bfloat16_many_micro_batches_add_up_to_as_much(ranks: Ranks) -> None:
    errors = ranks.run(trouble.accumulate)
    assert len(errors) == 7
    # A sum in bfloat16 is 2 % off; each micro-batch's own gradient is rounded to about 0.2 %.
    assert all(error < 0.004 for error in errors.values()), errors


def test_what_is_rehearsed_or_not_finite_on_one_rank_changes_nothing_on_any(ranks: Ranks) -> None:
    one, other = ranks.run(trouble.skip_updates, ranks=2)
    assert one == other
    assert len(one) == 8 + 7
    for setting, outcome in one.items():
        assert outcome == {
            # A gradient of 256 on one rank and of 1 on the other.
            "norm over ranks": 257,
            "finite": [False] * 4,
            "changed": [False] * 3,
            "learned": True,
            "as undisturbed": True,
            "updates": 2,
        }, setting


def test_two_ranks_with_zero_3_load_a_model_once(ranks: Ranks, tmp_path: Path) -> None:
    config = Qwen2Config(
        vocab_size=2000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path)
    model_bytes = 2 * sum(p.numel() for p in model.parameters())
    peaks, gap = ranks.run(
        trouble.load_model,
        ranks=2,
        folder=tmp_path,
        dtype="bfloat16",
    )
    assert sum(peaks) < 1.75 * model_bytes  # two whole models would be 2, and each holds more
    assert gap == 0  # rotations too are as exact as without ZeRO


def test_training_takes_the_memory_that_is_planned(ranks: Ranks) -> None:
    """Three of the rows of the benchmark: ZeRO-1, ZeRO-2, and ZeRO-3 with an offload."""
    ranks.run(trouble.compare_memory, rows=[2, 4, 10])
    one, two, offloaded = json.loads(ranks.output.splitlines()[-1])
    assert (offloaded["stage"], offloaded["offload"]) == (3, "optimizer")
    for row in (one, two, offloaded):
        assert -1.3 < row["measured"] - row["planned"] < OF_GLOO + 2


def test_when_rank_0_fails_no_order_follows(ranks: Ranks) -> None:
    heard = ranks.run(trouble.fail_on_rank_0, ranks=2, others_may_fail=True)
    assert heard == ["BatchTooLarge", "TeamBroken"]


def test_where_an_order_is_given_up_the_other_ranks_end(ranks: Ranks, tmp_path: Path) -> None:
    heard = ranks.run(
        trouble.abandon,
        ranks=2,
        others_may_fail=True,
        folder=tmp_path,
    )
    assert heard == ["busy: True", "rank 1 has ended"]


def test_a_rank_that_is_killed_is_no_fault_of_the_order(ranks: Ranks) -> None:
    (heard,) = ranks.run(
        trouble.lose_rank_1,
        ranks=2,
        others_may_fail=True,
    )
    assert heard.startswith("TeamBroken: another rank is lost")


@pytest.mark.parametrize(
    "stays",
    [False, True],
    ids=["it ends", "it waits"],
)
def test_rank_0_hears_of_a_rank_without_memory(ranks: Ranks, model: Path, *, stays: bool) -> None:
    """The rank ends of it, which breaks the connection, or stays and is silent."""
    heard = ranks.run(
        trouble.run_out_of_memory, ranks=2, others_may_fail=True, model=model, stays=stays
    )
    assert heard[:2] == ["it fits"] * 2
    assert heard[2].startswith("BatchTooLarge: rank 1: ")
    assert "can't allocate memory" in heard[2]


def test_rank_0_hears_of_a_rank_that_could_not_save_while_it_has_begun_the_next_order(
    ranks: Ranks, model: Path
) -> None:
    heard = ranks.run(
        trouble.fail_to_save,
        ranks=2,
        others_may_fail=True,
        model=model,
    )
    assert heard == ["OSError: [Errno 28] rank 1: No space left: 'a file'"]


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (MemoryError("nothing left"), "MemoryError: rank 1: nothing left"),
        (RuntimeError("CUDA error: the GPU is lost"), "RuntimeError: rank 1: CUDA error: the GPU"),
        (UnknownName("a formula's own mistake"), "UnknownName: rank 1: a formula's own mistake"),
        # It needs more than its words.
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "RuntimeError: rank 1: UnicodeDecodeE"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_error_of_a_rank_keeps_its_type_as_far_as_it_can(
    monkeypatch: pytest.MonkeyPatch, error: Exception, heard: str
) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    copy = _load_error(_dump_error(error))
    assert f"{type(copy).__name__}: {copy}".startswith(heard)
