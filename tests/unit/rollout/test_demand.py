"""The version that a rollout serves during an evaluation, and the streams that it leaves alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from protocol.messages import RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, REQUESTS

from services.rollout.demand import Demand
from tests.builders import a_policy, a_request
from tests.tables import table

EVALUATION = a_request(purpose=Purpose.EVAL, min_version=3, version=3)


def a_demand(serving: int | None, newest: int, evaluated: int | None = None) -> Demand:
    newest_policy = a_policy(newest)
    if evaluated is not None:
        update = {"evaluated": a_policy(evaluated)}
        newest_policy = newest_policy.model_copy(update=update)
    return Demand(
        newest=newest_policy,
        serving=None if serving is None else a_policy(serving),
        last_version=9,
        is_alone=False,
        linger_s=0.0,
    )


def target_number(demand: Demand) -> int:
    assert demand.target is not None
    return demand.target.number


@contextmanager
def sampling(demand: Demand, *requests: RolloutRequest) -> Iterator[None]:
    with ExitStack() as stack:
        for request in requests:
            stack.enter_context(demand.hold(request))
            stack.enter_context(demand.sample(request))
        yield


@pytest.mark.parametrize(("evaluated", "target"), [(3, 3), (None, 5)])
def test_a_rollout_lingers_for_the_next_request_of_an_evaluation(
    evaluated: int | None, target: int
) -> None:
    demand = a_demand(3, 5, evaluated)
    demand.linger_s = 60.0
    with sampling(demand, EVALUATION):
        pass
    assert target_number(demand) == target
    demand.linger_s = 0.0
    assert target_number(demand) == 5


def test_nothing_is_sampled_before_a_policy_is_served() -> None:
    assert not Demand().may_begin(a_request())
    assert not a_demand(None, 3).may_begin(a_request())


def test_a_request_is_sampled_by_its_oldest_allowed_policy_and_newer_ones() -> None:
    demand = a_demand(3, 3)
    assert demand.may_begin(a_request(min_version=2))
    assert demand.may_begin(a_request(min_version=3))
    assert not demand.may_begin(a_request(min_version=4))
    assert not demand.may_begin(a_request(job_id="other"))


def test_an_evaluation_is_sampled_by_its_own_version_alone() -> None:
    assert not a_demand(2, 2).may_begin(EVALUATION)
    assert a_demand(3, 3).may_begin(EVALUATION)
    assert not a_demand(4, 4).may_begin(EVALUATION)


def test_a_rollout_stays_at_the_evaluated_version_until_the_last_response() -> None:
    demand = a_demand(3, 5, evaluated=3)
    with sampling(demand, EVALUATION):
        assert target_number(demand) == 3
        assert demand.may_begin(a_request(min_version=2))
        assert not demand.may_begin(a_request(min_version=4))
    assert target_number(demand) == 5


def test_a_rollout_returns_to_the_evaluated_version_when_no_sample_needs_a_newer_one() -> None:
    demand = a_demand(5, 5, evaluated=3)
    older = a_request(min_version=3)
    newer = a_request(min_version=4)
    with sampling(demand, older), demand.hold(EVALUATION):
        with sampling(demand, newer):
            assert target_number(demand) == 3
            assert not demand.may_switch
            assert demand.may_begin(older)
            assert not demand.may_begin(newer)
        assert demand.may_switch


def test_a_rollout_loads_the_newest_version_if_the_evaluated_one_is_gone() -> None:
    demand = a_demand(5, 6, evaluated=4)
    with demand.hold(EVALUATION):
        assert target_number(demand) == 6
        assert demand.may_switch


@pytest.mark.parametrize("is_alone", [True, False])
def test_requests_for_newer_weights_are_left_to_others_during_an_evaluation(
    is_alone: bool,
) -> None:
    demand = a_demand(3, 4, evaluated=3)
    newer = a_request(min_version=4)
    demand.is_alone = is_alone
    assert not demand.is_for_others(newer)
    with sampling(demand, EVALUATION):
        assert not demand.is_for_others(a_request(min_version=3))
        assert not demand.excluded_streams(0, 2)
        demand.is_alone = is_alone
        assert demand.is_for_others(newer) is not is_alone
        assert demand.excluded_streams(0, 2) == (set() if is_alone else {REQUESTS})
    assert not demand.excluded_streams(0, 2)


@table("""
    replicas | evaluating
    1        | 1
    2        | 1
    7        | 1
    8        | 2
""")
def test_an_evaluation_during_training_is_for_a_quarter_of_the_rollouts(
    replicas: int, evaluating: int
) -> None:
    during = a_demand(3, 3)
    after = a_demand(9, 9)
    streams = [during.excluded_streams(place, replicas) for place in range(replicas)]
    assert streams == [set()] * evaluating + [{EVAL_REQUESTS}] * (replicas - evaluating)
    assert not any(after.excluded_streams(place, replicas) for place in range(replicas))
