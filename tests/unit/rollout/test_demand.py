"""Which version a rollout serves while an evaluation goes on, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from protocol.messages import PolicyVersion, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, REQUESTS

from services.rollout.demand import Demand
from tests.builders import a_policy, a_request

EVALUATED = a_request(number=7, purpose=Purpose.EVAL, min_version=3, version=3)


def a_newer_policy(number: int, evaluated: int | None = None) -> PolicyVersion:
    older = None if evaluated is None else a_policy(evaluated)
    return a_policy(number).model_copy(update={"evaluated": older})


def a_demand(serving: int | None, newest: int, evaluated: int | None = None) -> Demand:
    policy = None if serving is None else a_policy(serving)
    return Demand(
        newest=a_newer_policy(newest, evaluated),
        serving=policy,
        last_version=9,
        is_alone=False,
        linger_s=0.0,
    )


def test_who_has_answered_lingers_for_the_next_request_of_the_evaluation() -> None:
    demand, over = a_demand(3, 5, evaluated=3), a_demand(3, 5)
    for each in (demand, over):
        each.linger_s = 60.0
        with at_work(each, EVALUATED):
            pass
    assert (wanted(demand), wanted(over)) == (3, 5)
    demand.linger_s = 0.0
    assert wanted(demand) == 5


def wanted(demand: Demand) -> int:
    assert demand.wanted is not None
    return demand.wanted.number


@contextmanager
def at_work(demand: Demand, *requests: RolloutRequest) -> Iterator[None]:
    with ExitStack() as stack:
        for request in requests:
            stack.enter_context(demand.holding(request))
            stack.enter_context(demand.working_on(request))
        yield


def test_nothing_is_answered_before_a_policy_is_served() -> None:
    assert not Demand().may_begin(a_request())
    assert not a_demand(None, 3).may_begin(a_request())


def test_a_request_is_answered_by_its_oldest_allowed_policy_and_newer_ones() -> None:
    for min_version, allowed in [(2, True), (3, True), (4, False)]:
        assert a_demand(3, 3).may_begin(a_request(min_version=min_version)) is allowed
    assert not a_demand(3, 3).may_begin(a_request(job_id="other"))


def test_an_evaluation_is_answered_by_its_own_version_alone() -> None:
    allowed = [a_demand(number, number).may_begin(EVALUATED) for number in (2, 3, 4)]
    assert allowed == [False, True, False]


def test_who_evaluates_stays_at_that_version_until_the_last_answer() -> None:
    demand = a_demand(3, 5, evaluated=3)
    with at_work(demand, EVALUATED):
        assert wanted(demand) == 3
        assert demand.may_begin(a_request(min_version=2))
        assert not demand.may_begin(a_request(min_version=4))
    assert wanted(demand) == 5


def test_a_rollout_that_has_gone_on_goes_back_once_no_request_at_work_needs_newer_weights() -> None:
    demand = a_demand(5, 5, evaluated=3)
    newer, older = a_request(number=1, min_version=4), a_request(number=2, min_version=3)
    with at_work(demand, older), demand.holding(EVALUATED):
        with at_work(demand, newer):
            assert wanted(demand) == 3
            assert not demand.may_switch
            assert demand.may_begin(older)
            assert not demand.may_begin(a_request(number=3, min_version=4))
        assert demand.may_switch


def test_where_the_measured_version_is_nowhere_a_rollout_goes_to_the_newest() -> None:
    demand = a_demand(5, 6, evaluated=4)
    with demand.holding(EVALUATED):
        assert (wanted(demand), demand.may_switch) == (6, True)


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_asks_for_newer_weights_is_left_to_others_while_an_evaluation_is_answered(
    is_alone: bool,
) -> None:
    demand, newer = a_demand(3, 4, evaluated=3), a_request(min_version=4)
    demand.is_alone = is_alone
    assert not demand.is_for_others(newer)
    with at_work(demand, EVALUATED):
        assert not demand.is_for_others(a_request(min_version=3))
        assert not demand.left_to_others(0, 2)
        demand.is_alone = is_alone
        assert demand.is_for_others(newer) is not is_alone
        assert demand.left_to_others(0, 2) == (set() if is_alone else {REQUESTS})
    assert not demand.left_to_others(0, 2)


@pytest.mark.parametrize(
    ("replicas", "evaluating"), [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (16, 4)]
)
def test_an_evaluation_beside_training_is_for_a_quarter_of_the_rollouts(
    replicas: int, evaluating: int
) -> None:
    beside, otherwise = a_demand(3, 3), a_demand(9, 9)
    left = [bool(beside.left_to_others(place, replicas)) for place in range(replicas)]
    assert left == [False] * evaluating + [True] * (replicas - evaluating)
    assert replicas == 1 or beside.left_to_others(replicas - 1, replicas) == {EVAL_REQUESTS}
    assert not any(otherwise.left_to_others(place, replicas) for place in range(replicas))
