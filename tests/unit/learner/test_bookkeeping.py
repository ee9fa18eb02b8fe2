"""Feeder, log and ledger: what makes a new attempt go on where the last one was."""

from pathlib import Path

import pytest
from protocol.frames import FrameError, encode, pack
from protocol.messages import GradedGroup
from protocol.recipe import Purpose

from services.learner.evaluation import evaluation_steps
from services.learner.feeder import request_seed, task_index
from services.learner.ledger import Ledger
from services.learner.log import GroupLog, read_log
from tests.builders import a_recipe


def failed(number: int) -> GradedGroup:
    return GradedGroup(purpose=Purpose.TRAIN, number=number, failure="deaths: 3 workers died")


def test_every_task_is_asked_once_an_epoch_in_a_new_order() -> None:
    epochs = [[task_index(e * 50 + i, 50, seed=3) for i in range(50)] for e in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] == [task_index(i, 50, seed=3) for i in range(50)]
    assert epochs[0] != [task_index(i, 50, seed=4) for i in range(50)]


def test_seeds_differ_by_number_and_purpose() -> None:
    seeds = {request_seed(1, purpose, n) for purpose in Purpose for n in range(500)}
    assert len(seeds) == len(Purpose) * 500


def test_evaluations_are_before_in_between_and_after() -> None:
    recipe = a_recipe(
        training={"steps": 10}, tasks={"train": "a", "held_out": "b"}, evaluation={"every": 4}
    )
    assert evaluation_steps(recipe) == [0, 4, 8, 10]
    assert evaluation_steps(a_recipe()) == []


def test_the_log_gives_back_what_was_appended_across_segments_and_attempts(tmp_path: Path) -> None:
    first = GroupLog(tmp_path, attempt=1)
    first.append([encode(failed(0)), encode(failed(1))])
    first.roll()
    first.append([encode(failed(2))])
    second = GroupLog(tmp_path, attempt=2)
    second.append([encode(failed(3))])
    assert [group.number for _, group in read_log(tmp_path)] == [0, 1, 2, 3]
    assert [g.number for _, g in read_log(tmp_path, "000001-000001.segment")] == [2, 3]


def test_a_torn_last_record_is_as_if_it_had_never_been_written(tmp_path: Path) -> None:
    log = GroupLog(tmp_path, attempt=1)
    log.append([encode(failed(0))])
    with (tmp_path / log.segment).open("ab") as segment:
        segment.write(pack(encode(failed(1)))[:-1])
    assert [group.number for _, group in read_log(tmp_path)] == [0]


def test_a_damaged_record_is_no_silent_loss(tmp_path: Path) -> None:
    log = GroupLog(tmp_path, attempt=1)
    log.append([encode(failed(0)), encode(failed(1))])
    path = tmp_path / log.segment
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(FrameError, match="damaged"):
        list(read_log(tmp_path))


def test_the_ledger_accounts_for_every_number() -> None:
    ledger = Ledger(Purpose.TRAIN)
    ledger.train(3)
    ledger.drop("deaths")
    ledger.drop("deaths")
    assert ledger.position == 5
    there = {"train:4", "train:5", "train:6", "train:7", "eval:5", "pretrain:6"}
    account = ledger.account(7, there)
    assert account == {"asked": 7, "trained": 3, "dropped": {"deaths": 2}, "under_way": 2}
    again = Ledger(Purpose.TRAIN)
    again.restore(ledger.state())
    assert again == ledger
