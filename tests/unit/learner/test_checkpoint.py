"""Folders that are whole or not there, checkpoints in their order, and what they keep."""

import math
from pathlib import Path
from typing import cast

import pytest
from protocol.recipe import Purpose

from services.learner.attempt import MachineFault
from services.learner.durable.checkpoint import (
    Checkpoints,
    LearnerState,
    checkpoint_name,
    remove_leftovers,
    write_whole,
)
from services.learner.durable.progress import Progress
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
    # What has failed leaves the room that it took, which a full disk needs.
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


def test_leftovers_of_attempts_until_now_go_and_what_stepped_aside_steps_back(
    tmp_path: Path,
) -> None:
    left = [".unfinished-1-model", ".unfinished-2-model", ".unfinished-step-000017"]
    aside = [".replaced-1-step-000004", ".replaced-1-step-000002"]
    kept = [".unfinished-3-model", ".another", "step-000002"]
    for name in (*left, *aside, *kept):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "step-000004"}
    remove_leftovers(tmp_path / "not there", 1)


def a_state(step: int) -> LearnerState:
    return LearnerState(step=step, first_segment="", ledgers={}, evaluations=[], totals={})


async def nothing() -> None:
    pass


@pytest.mark.anyio
async def test_the_two_newest_whole_checkpoints_stay_and_a_damaged_one_counts_for_none(
    tmp_path: Path,
) -> None:
    checkpoints, team = Checkpoints(tmp_path, 1), cast(Team, FakeTeam())
    assert checkpoints.newest() is None
    for step in (2, 4):
        await checkpoints.save(team, a_state(step), nothing)
    (tmp_path / "step-000004/policy/digest").write_text("damaged")
    later = Checkpoints(tmp_path, 2)
    newest = later.newest()
    assert newest is not None
    assert newest == (tmp_path / "step-000002", a_state(2).model_copy(update={"ranks": 1}))
    assert list(later.damaged) == [tmp_path / "step-000004"]
    assert "policy/digest: damaged" in later.damaged[tmp_path / "step-000004"]
    await later.save(team, a_state(6), nothing)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000002", "step-000006"}
    (tmp_path / "step-000006/policy/digest").write_text("damaged")
    assert later.newest() is not None
    for step in (6, 8):  # what was damaged is made again
        await later.save(team, a_state(step), nothing)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000006", "step-000008"}


@pytest.mark.anyio
@pytest.mark.parametrize("gone", [("state.json",), ("state.json", "manifest.json")])
async def test_a_checkpoint_that_has_lost_its_state_is_damaged_and_no_reason_to_begin_anew(
    tmp_path: Path, gone: tuple[str, ...]
) -> None:
    checkpoints, team = Checkpoints(tmp_path, 1), cast(Team, FakeTeam())
    for step in (2, 4):
        await checkpoints.save(team, a_state(step), nothing)
    for name in gone:
        (tmp_path / "step-000004" / name).unlink()
    newest = checkpoints.newest()
    assert newest is not None
    assert newest[0] == tmp_path / "step-000002"
    assert list(checkpoints.damaged) == [tmp_path / "step-000004"]
    for name in gone:
        (tmp_path / "step-000002" / name).unlink()
    with pytest.raises(MachineFault, match=r"state\.json"):
        checkpoints.newest()
    await checkpoints.save(team, a_state(6), nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000006"]


def test_names_of_checkpoints_sort_in_the_order_of_training() -> None:
    moments = [(0, 0), (0, 2), (0, 10), (1, 10), (2, 10), (10, 10)]
    names = [checkpoint_name(step, pretrained) for step, pretrained in moments]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert checkpoint_name(7) == checkpoint_name(7, 3) == "step-000007"


def test_progress_comes_back_from_a_checkpoint_as_it_was() -> None:
    progress = Progress(step=3, pretrained=2, keep_rate=0.25)
    progress.note_evaluation({"step": 0})
    progress.note_update({"updates": 2.0})
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


def test_the_first_and_the_newest_evaluations_are_kept_and_all_are_counted() -> None:
    progress = Progress()
    for step in range(3000):
        progress.note_evaluation({"step": step, "per_task": {"a": [1, 4]}})
    assert progress.evaluations[-1] == {"step": 2999}
    assert [result["step"] for result in progress.evaluations] == [0, *range(2000, 3000)]
    again = Progress.of(progress.state(""))
    again.note_evaluation({"step": 3000})
    assert again.evaluated == 3001
    assert [result["step"] for result in again.evaluations] == [0, *range(2001, 3001)]


def test_a_checkpoint_of_an_earlier_release_is_read() -> None:
    results = [{"step": step, "accuracy": 0.5, "per_task": {"a": [1, 2]}} for step in range(3)]
    totals = dict.fromkeys(
        ("train_seconds", "samples", "tokens", "parity_max", "parity_tokens"), 1.0
    )
    stored = {"step": 2, "first_segment": "", "ledgers": {}, "evaluations": results}
    progress = Progress.of(LearnerState.model_validate({**stored, "totals": totals}))
    assert progress.evaluated == 3
    assert progress.evaluations == [{"step": step, "accuracy": 0.5} for step in range(3)]
    progress.note_update({"updates": 1.0})
    assert {name: progress.totals[name] for name in totals} == totals
    assert (progress.totals["updates"], progress.totals["empty_steps"]) == (3.0, 0.0)


def test_a_gap_that_is_not_finite_spoils_no_checkpoint() -> None:
    progress = Progress()
    for gap in (math.inf, 0.25, math.nan):
        progress.note_parity({"parity_max": gap, "parity_tokens": 1.0})
    assert (progress.totals["parity_max"], progress.totals["parity_tokens"]) == (0.25, 3.0)


def test_nothing_was_learned_without_a_group_or_without_an_update() -> None:
    progress = Progress()
    progress.ledgers[Purpose.TRAIN].drop("failures", 3)
    progress.ledgers[Purpose.TRAIN].drop("no_signal")
    assert "failures 3, no_signal 1" in str(progress.why_nothing_was_learned())
    progress.ledgers[Purpose.TRAIN].train(1)
    progress.note_update({"updates": 0.0})
    assert "finite" in str(progress.why_nothing_was_learned())
    progress.note_update({"updates": 1.0})
    assert progress.why_nothing_was_learned() is None
