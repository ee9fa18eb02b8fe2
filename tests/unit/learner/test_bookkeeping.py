"""Feeder and ledger: a new attempt continues where the last one ended."""

import asyncio
import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from protocol.exchange import Exchange
from protocol.messages import RolloutRequest, group_key
from protocol.recipe import Purpose, Recipe
from protocol.samples import USED

from services.learner.attempt import Attempt, request_seed, to_json
from services.learner.durable.progress import Ledger, Progress
from services.learner.job.learning import Learning
from services.learner.supply.curriculum import Curriculum, order_of_epoch
from services.learner.supply.evaluator import Evaluator, due_evaluations
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Lookahead
from tests.builders import a_recipe, a_task


def an_attempt(recipe: Recipe) -> Attempt:
    return Attempt(
        cast(Exchange, None),
        "job",
        2,
        recipe,
        Path("unused"),
    )


def test_every_task_is_asked_once_an_epoch_in_a_new_order() -> None:
    orders = [
        tuple(order_of_epoch(50, seed, epoch)) for epoch, seed in product(range(3), ("3", "4"))
    ]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 6


def test_a_new_attempt_continues_after_the_requests_of_earlier_ones() -> None:
    feeder = Feeder(
        an_attempt(a_recipe()),
        Curriculum(a_recipe(), {"": [a_task()]}),
        Purpose.TRAIN,
        lambda _: False,
    )
    feeder.resume(3, ["train:5", "train:7", "eval:9"])
    assert (feeder.next_number, list(feeder.open_numbers)) == (8, [0, 1, 2])
    feeder.resume(9, ["train:7"])
    assert feeder.next_number == 9


def test_a_request_names_the_step_that_is_expected_and_weights_fresh_enough_for_it() -> None:
    recipe = a_recipe(
        training={
            "steps": 9,
            "groups_per_step": 2,
            "max_staleness": 1,
        }
    )
    tasks = [a_task(id=f"task-{index}") for index in range(5)]
    feeder = Feeder(
        an_attempt(recipe),
        Curriculum(recipe, {"": tasks}),
        Purpose.TRAIN,
        lambda _: False,
    )
    requests: list[RolloutRequest] = []
    for step, position, needs, end in (
        (0, 0, (2, 2), 4),
        (4, 3, (2, 2), 7),
        (4, 7, (3, 1), 11),  # the expected step never falls with the number
    ):
        feeder.admit(
            Lookahead(
                step=step,
                position=position,
                needs=needs,
                limit=100,
            )
        )
        requests += map(feeder.request, range(len(requests), end))
    assert [request.step for request in requests] == [0, 0, 1, 1, 4, *[5] * 6]
    assert [request.min_version for request in requests] == [0, 0, 0, 0, 3, *[4] * 6]
    assert sorted(request.task.id for request in requests[:5]) == [task.id for task in tasks]


@pytest.mark.anyio
async def test_a_feeder_asks_once_for_each_number_that_is_not_answered() -> None:
    requests: list[int] = []

    class Recorder:
        async def ask(self, request: RolloutRequest) -> None:
            requests.append(request.number)

    attempt = Attempt(
        cast(Exchange, Recorder()),
        "job",
        2,
        a_recipe(),
        Path("unused"),
    )
    feeder = Feeder(
        attempt,
        Curriculum(attempt.recipe, {"": [a_task()]}),
        Purpose.TRAIN,
        lambda number: number == 3,
    )
    feeder.resume(2, [])
    feeding = asyncio.create_task(feeder.feed_forever())
    for position in (2, 4):
        feeder.admit(
            Lookahead(
                step=1,
                position=position,
                needs=(4,),
                limit=100,
            )
        )
        while feeder.next_number < position + 4:
            await asyncio.sleep(0)
    feeding.cancel()
    assert requests == [2, 4, 5, 6, 7]


def test_seeds_differ_by_number_and_purpose() -> None:
    seeds = {request_seed(1, purpose, n) for purpose in Purpose for n in range(500)}
    assert len(seeds) == len(Purpose) * 500


def test_each_held_out_file_has_an_interval_of_its_own_and_numbers_follow_one_another() -> None:
    """All numbers are known at once, however many there are."""
    other_files = {
        "math": {"held_out": "c", "every": 2},
        "easy": {"held_out": "d", "every": 9},
    }
    assert due_numbers(6, range(7), every=4, others=other_files) == {
        0: {"": range(2), "math": range(2, 5), "easy": range(5, 6)},
        2: {"math": range(6, 9)},
        4: {"": range(9, 11), "math": range(11, 14)},
        6: {"": range(14, 16), "math": range(16, 19), "easy": range(19, 20)},
    }
    for evaluation in ({}, {"every": 11}):  # before and after, where it is not more often
        assert list(due_numbers(10, range(11), **evaluation)) == [0, 10]
    numbers = range(2 * 10**13, 2 * 10**13 + 2)
    assert due_numbers(10**15, [10**14], every=10) == {10**14: {"": numbers}}


def test_an_evaluation_has_its_own_sampling_and_version() -> None:
    sampling = {"temperature": 0.6, "top_p": 0.7, "max_tokens": 32}
    recipe = a_recipe(
        tasks={"held_out": "aime.jsonl"},
        evaluation={"samples": 32, "every": 2, "sampling": sampling},
        training={"steps": 4},
    )
    evaluator = Evaluator(
        an_attempt(recipe),
        {"": [a_task(id="one"), a_task(id="two")]},
    )
    evaluator.begin(2)
    first, second = map(evaluator.request, evaluator.open_numbers)
    assert (first.number, first.task.id) == (2, "one")
    assert (second.number, second.task.id) == (3, "two")
    assert second.sampling.model_dump(include=set(sampling)) == sampling
    assert (second.purpose, second.group_size) == (Purpose.EVAL, 32)
    assert (second.step, second.min_version, second.version) == (2, 2, 2)


def due_numbers(steps: int, at: Iterable[int], **evaluation: Any) -> dict[int, dict[str, range]]:
    """The evaluations of a recipe whose files have two, three and one tasks."""
    recipe = a_recipe(
        training={"steps": steps},
        tasks={"held_out": "b"},
        evaluation=evaluation,
    )
    held_out = {
        "": [a_task()] * 2,
        "math": [a_task()] * 3,
        "easy": [a_task()],
    }
    due = {step: due_evaluations(recipe, held_out, step) for step in at}
    return {step: numbers for step, numbers in due.items() if numbers}


def test_the_ledger_accounts_for_every_number() -> None:
    ledger = Ledger()
    ledger.enter([USED, "deaths", USED, "deaths", USED])
    open_keys = {"train:4", "train:5", "train:6", "train:7", "eval:5", "pretrain:6"}
    account = ledger.account(Purpose.TRAIN, 7, open_keys)
    assert account == {"asked": 7, "trained": 3, "dropped": {"deaths": 2}, "under_way": 2}


@pytest.mark.anyio
async def test_an_account_leaves_out_requests_that_come_meanwhile() -> None:
    feeder = SimpleNamespace(next_number=3)

    async def pending_keys(_: str) -> set[str]:
        keys = {group_key(Purpose.TRAIN, number) for number in range(feeder.next_number)}
        feeder.next_number += 1
        return keys

    learning: Any = SimpleNamespace(
        attempt=SimpleNamespace(job_id="job", exchange=SimpleNamespace(pending_keys=pending_keys)),
        intake=SimpleNamespace(keys_waiting=set),
        progress=Progress(),
        _num_requested=lambda _: feeder.next_number,
    )
    account = await Learning.group_account(learning, Purpose.TRAIN)
    assert account == {"asked": 3, "trained": 0, "dropped": {}, "under_way": 3}


def test_to_json_turns_other_values_into_null_or_text() -> None:
    values = {
        "losses": [math.nan, 0.5],
        7: (-math.inf, np.float32(0.5), {1}),
    }
    assert to_json(values) == {"losses": [None, 0.5], "7": [None, 0.5, "{1}"]}
