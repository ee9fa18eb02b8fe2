"""Fixtures that every test may use, and what is skipped unless it is asked for."""

import re

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that take long or change the machine, unless ``-m`` names them."""
    left_out = {"recipes", "containers", "chaos"} - set(re.findall(r"\w+", config.option.markexpr))
    unasked = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=unasked)
    items[:] = [item for item in items if item not in unasked]
