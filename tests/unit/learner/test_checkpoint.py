"""Folders that are whole or not there, checkpoints in their order, and what they keep."""

from pathlib import Path

import pytest
from protocol.recipe import Purpose

from services.learner.checkpoint import LearnerState, checkpoint_name, write_whole
from services.learner.progress import Progress


async def fill(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "weights").write_text("new")


async def fail_halfway(folder: Path) -> None:
    await fill(folder)
    raise OSError("disk full")


async def refuse() -> None:
    raise RuntimeError("superseded")


@pytest.mark.anyio
async def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made" / "model"
    await write_whole(target, fill)
    (target / "old").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        await write_whole(target, fail_halfway)
    with pytest.raises(RuntimeError, match="superseded"):
        await write_whole(target, fill, refuse)
    assert (target / "old").exists()
    await write_whole(target, fill)
    assert [path.name for path in target.rglob("*")] == ["part", "weights"]
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_names_of_checkpoints_sort_in_the_order_of_training() -> None:
    moments = [(0, 0), (0, 2), (0, 10), (1, 10), (2, 10), (10, 10)]
    names = [checkpoint_name(step, pretrained) for step, pretrained in moments]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert checkpoint_name(7) == checkpoint_name(7, 3) == "step-000007"


def test_progress_comes_back_from_a_checkpoint_as_it_was() -> None:
    progress = Progress(step=3, pretrained=2, keep_rate=0.25, evaluations=[{"step": 0}])
    progress.ledgers[Purpose.TRAIN].train(5)
    progress.ledgers[Purpose.TRAIN].drop("no_signal", 4)
    progress.ledgers[Purpose.PRETRAIN].train(8)
    progress.accepted[Purpose.TRAIN] = 7
    progress.note_parity({"parity_max": 1e-5, "parity_tokens": 7.0})
    progress.note_parity({})
    progress.note_work(2.5, responses=8, tokens=90)
    stored = progress.state("000001-000002.segment").model_dump_json()
    state = LearnerState.model_validate_json(stored)
    again = Progress.of(state)
    assert again == progress
    assert again.positions == {Purpose.TRAIN: 9, Purpose.PRETRAIN: 8, Purpose.EVAL: 0}
    assert again.totals["parity_max"] == 1e-5
    assert state.first_segment == "000001-000002.segment"
