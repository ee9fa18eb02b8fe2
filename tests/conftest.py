"""Fixtures that every test may use, and what is skipped unless it is asked for."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that take an hour, whatever else is asked for."""
    if "recipes" in config.option.markexpr:
        return
    too_long = [item for item in items if item.get_closest_marker("recipes")]
    config.hook.pytest_deselected(items=too_long)
    items[:] = [item for item in items if item not in too_long]
