"""Random requests: a small sample, and thousands with `make test-long`."""

from __future__ import annotations

import pytest

from tests.contract.gateway.stack import Stack
from tests.fuzz.bodies import try_bodies

pytestmark = pytest.mark.redis
long = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=long)])
def test_no_body_breaks_the_gateway_or_queues_what_it_refused(stack: Stack, count: int) -> None:
    result = try_bodies(stack, seed=1, numbers=range(count))
    assert result.faults == []
    assert set(result.statuses) >= {200, 400, 413}
