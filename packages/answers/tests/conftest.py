"""Work is counted in calls, and no example has a deadline: the machine may be busy."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def _count_calls(action: Callable[[], object]) -> int:
    """Return how many functions are called, those in C too."""
    count = 0

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    return _count_calls
