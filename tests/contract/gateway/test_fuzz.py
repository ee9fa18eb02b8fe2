"""Random requests, a small sample: the commands of `tests/fuzz` try thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.gateway.stack import Stack
from tests.contract.valkey_server import Server
from tests.fuzz.bodies import try_bodies
from tests.fuzz.described import try_requests

pytestmark = pytest.mark.redis


def test_no_body_breaks_the_gateway_or_queues_what_it_refused(
    own_server: Server, tmp_path: Path
) -> None:
    found = try_bodies(own_server, tmp_path, seed=1, numbers=range(200))
    assert found.faults == []
    assert {status for _, status in found.statuses} >= {200, 400, 413}


def test_every_answer_is_one_that_the_document_describes(stack: Stack) -> None:
    answers = try_requests(stack, count=100, number=1)
    assert {status for _, status in answers} >= {200, 400, 401}
