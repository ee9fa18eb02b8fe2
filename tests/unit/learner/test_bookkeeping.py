"""Feeder and ledger: what makes a new attempt go on where the last one was."""

import pytest
from protocol.recipe import Purpose

from services.learner.attempt import request_seed
from services.learner.supply.evaluator import evaluation_place
from services.learner.supply.feeder import task_index
from services.learner.supply.ledger import Ledger
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
    assert [evaluation_place(recipe, step) for step in range(11)] == [
        *(0, None, None, None),
        *(1, None, None, None),
        *(2, None, 3),
    ]
    assert evaluation_place(a_recipe(), 0) is None


@pytest.mark.parametrize("every", [None, 10, 11])
def test_an_evaluation_as_often_as_there_are_steps_is_made_before_and_after(
    every: int | None,
) -> None:
    evaluation = {} if every is None else {"every": every}
    recipe = a_recipe(training={"steps": 10}, tasks={"held_out": "b"}, evaluation=evaluation)
    places = [evaluation_place(recipe, step) for step in range(11)]
    assert places == [0, *[None] * 9, 1]


def test_the_place_of_an_evaluation_is_known_at_once_however_many_there_are() -> None:
    recipe = a_recipe(training={"steps": 10**15}, tasks={"held_out": "b"}, evaluation={"every": 10})
    assert evaluation_place(recipe, 10**14) == 10**13


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
