"""What the README says of the OpenAI SDK is what its calls come to."""

from __future__ import annotations

import pytest

from tests.contract.gateway.compatibility import CALLS, a_world, methods, table, told_in_readme

pytestmark = pytest.mark.redis


def test_every_method_of_the_sdk_is_called() -> None:
    assert {name.partition("(")[0] for name, _, _ in CALLS} == methods()


def test_the_table_of_the_readme_is_what_the_calls_come_to() -> None:
    with a_world() as world:
        assert table(world) == told_in_readme()
