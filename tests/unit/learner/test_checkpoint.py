"""Folders appear whole, progress survives in checkpoints, and damaged uploads are named."""

import io
import json
import math
from pathlib import Path
from typing import cast

import pytest
from protocol.recipe import Purpose
from protocol.samples import USED

from services.gateway.core.files.store import copy_with_id
from services.learner.attempt import MachineFault
from services.learner.durable.checkpoint import Checkpoints, remove_leftovers, write_whole
from services.learner.durable.progress import Progress
from services.learner.durable.uploads import check_upload
from services.learner.training.ranks import Team
from tests.contract.fake_team import FakeTeam


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
    await write_whole(target, fill, attempt=1)
    (target / "old").write_text("old")
    with pytest.raises(OSError, match="full"):
        await write_whole(target, fail_halfway, attempt=1)
    with pytest.raises(RuntimeError, match="superseded"):
        await write_whole(target, fill, refuse, attempt=1)
    assert (target / "old").exists()
    # A failed write leaves no files, since the disk may be full.
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    await write_whole(target, fill, attempt=2)
    assert [path.name for path in target.rglob("*")] == ["part", "weights"]
    assert [path.name for path in target.parent.iterdir()] == ["model"]


@pytest.mark.anyio
async def test_two_attempts_that_write_the_same_folder_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "model"

    async def fill_while_another_does(folder: Path) -> None:
        await fill(folder)
        await write_whole(target, fill, attempt=2)
        assert (folder / "part" / "weights").exists()

    await write_whole(target, fill_while_another_does, attempt=1)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_leftovers_of_earlier_attempts_are_removed_and_replaced_folders_restored(
    tmp_path: Path,
) -> None:
    unfinished = [".unfinished-1-model", ".unfinished-2-model"]
    replaced = [".replaced-1-step-000004", ".replaced-1-step-000002"]
    remaining = [".unfinished-3-model", ".another", "step-000002"]
    for name in (*unfinished, *replaced, *remaining):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {*remaining, "step-000004"}
    remove_leftovers(tmp_path / "not there", 1)


async def refuse_nothing() -> None:
    pass


async def save_steps(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        await checkpoints.save(
            cast(Team, FakeTeam()),
            Progress(step=step),
            refuse_nothing,
        )


@pytest.mark.anyio
@pytest.mark.parametrize("damaged", ["policy/digest", "state.json"])
async def test_the_two_newest_whole_checkpoints_stay_and_a_damaged_one_counts_for_none(
    tmp_path: Path, damaged: str
) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    assert checkpoints.newest() is None
    await save_steps(checkpoints, 2, 4)
    (tmp_path / "step-000004" / damaged).write_text("{}")
    later = Checkpoints(tmp_path, 2)
    assert later.newest() == (tmp_path / "step-000002", Progress(step=2, ranks=1))
    assert damaged in later.damaged[tmp_path / "step-000004"]
    await save_steps(later, 6)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000002", "step-000006"}
    (tmp_path / "step-000006" / damaged).unlink()
    assert later.newest() is not None
    await save_steps(later, 6, 8)  # a damaged checkpoint is written again
    assert {path.name for path in tmp_path.iterdir()} == {"step-000006", "step-000008"}


@pytest.mark.anyio
async def test_a_job_without_a_whole_checkpoint_does_not_start_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    await save_steps(checkpoints, 2)
    (tmp_path / "step-000002/state.json").unlink()
    with pytest.raises(MachineFault, match=r"state\.json"):
        checkpoints.newest()


def test_names_of_checkpoints_sort_in_the_order_of_training() -> None:
    moments = [
        (0, 0),
        (0, 2),
        (0, 10),
        (1, 10),
        (2, 10),
        (10, 10),
    ]
    names = [Progress(step=step, pretrained=alone).checkpoint_name for step, alone in moments]
    assert names == sorted(set(names))


def test_progress_comes_back_from_a_checkpoint_as_it_was() -> None:
    progress = Progress(step=3, pretrained=2, keep_rate=0.25)
    progress.note_pretraining({"explained_variance": 0.5})
    progress.note_evaluation({"step": 0})
    progress.note_update(
        {
            "updates": 2.0,
            "parity_max": 1e-5,
            "parity_tokens": 7.0,
        }
    )
    progress.ledgers[Purpose.TRAIN].enter([USED, USED, "no_signal"])
    progress.ledgers[Purpose.PRETRAIN].enter([USED])
    progress.accepted[Purpose.TRAIN] = 7
    progress.note_work(2.5, responses=8, tokens=90)
    again = Progress.model_validate_json(progress.model_dump_json())
    assert again == progress
    assert again.positions == {Purpose.TRAIN: 3, Purpose.PRETRAIN: 1, Purpose.EVAL: 0}


def test_the_first_and_the_newest_evaluations_are_kept_and_all_are_counted() -> None:
    progress = Progress()
    for step in range(3000):
        progress.note_evaluation({"step": step, "per_task": {"a": [1, 4]}})
    assert progress.evaluations == [{"step": step} for step in (0, *range(2000, 3000))]
    assert progress.evaluated == 3000


def test_a_gap_that_is_not_finite_spoils_no_checkpoint() -> None:
    progress = Progress()
    for gap in (math.inf, 0.25, math.nan):
        progress.note_parity({"parity_max": gap, "parity_tokens": 1.0})
    assert (progress.totals["parity_max"], progress.totals["parity_tokens"]) == (0.25, 3.0)


def test_nothing_was_learned_without_a_group_or_without_an_update() -> None:
    progress = Progress()
    ledger = progress.ledgers[Purpose.TRAIN]
    ledger.drop("failures", 3)
    assert "failures 3" in str(progress.learning_failure())
    ledger.enter([USED])
    progress.note_update({"updates": 0.0})
    assert "finite" in str(progress.learning_failure())
    progress.note_update({"updates": 1.0, "grad_norm": 0.0})
    assert "no_signal 1" in str(progress.learning_failure())
    progress.note_update({"updates": 1.0, "grad_norm": 0.1})
    assert progress.learning_failure() is None


def test_an_upload_whose_content_has_changed_is_named_until_it_is_uploaded_again(
    tmp_path: Path,
) -> None:
    content = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'
    part = tmp_path / "part"
    file_id = copy_with_id(io.BytesIO(content), "tasks ü.jsonl", part)
    path = part.rename(tmp_path / f"{file_id}.jsonl")
    description = tmp_path / f"{file_id}.json"
    description.write_text(
        json.dumps(
            {
                "id": file_id,
                "filename": "tasks ü.jsonl",
            }
        )
    )
    check_upload(path)
    path.write_bytes(content.replace(b"2", b"3"))
    with pytest.raises(MachineFault, match=f"{path.name} is damaged; upload the file again"):
        check_upload(path)
    for text in ("", "[]", "{}"):  # without a description it is taken as it is
        description.write_text(text)
        check_upload(path)


def test_an_evaluation_counts_for_the_step_of_its_beginning() -> None:
    progress = Progress(step=5, pretrained=2, evaluating=4)
    steps = {purpose: progress.completed_steps(purpose) for purpose in Purpose}
    assert steps == {Purpose.TRAIN: 5, Purpose.PRETRAIN: 2, Purpose.EVAL: 4}
