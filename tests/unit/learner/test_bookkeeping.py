"""Feeder and ledger: what makes a new attempt go on where the last one was."""

from protocol.recipe import Purpose

from services.learner.evaluation import evaluation_steps
from services.learner.feeder import request_seed, task_index
from services.learner.ledger import Ledger
from tests.builders import a_recipe


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
