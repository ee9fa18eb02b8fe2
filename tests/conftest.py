"""Fixtures that every test may use, and what is skipped unless it is asked for.

Hypothesis has no deadlines: the machine may be busy. ``WEIR_HYPOTHESIS_PROFILE=mutants`` is for the
many runs of `make mutants`: few examples, and a failure is not made smaller.
"""

import os
import re

import pytest
from hypothesis import Phase, settings

settings.register_profile("no deadline", deadline=None)
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile(os.environ.get("WEIR_HYPOTHESIS_PROFILE", "no deadline"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that take long or change the machine, unless ``-m`` names them."""
    left_out = {"recipes", "containers", "chaos", "long"} - set(re.findall(r"\w+", config.option.markexpr))
    unasked = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=unasked)
    items[:] = [item for item in items if item not in unasked]
