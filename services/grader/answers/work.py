"""How much work one comparison may take: counted, not timed, so the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


class OutOfWork(Exception):
    """A comparison takes too long for the event loop; what it would find is not known."""


@dataclass
class _Budget:
    left: int


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def at_most(steps: int) -> Iterator[None]:
    """Limit what is spent inside; a step is about a microsecond."""
    token = _BUDGET.set(_Budget(steps))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(steps: int) -> None:
    """Count what is about to be done.

    Raises:
        OutOfWork: if it is more than `at_most` allows; without it everything is allowed.
    """
    budget = _BUDGET.get()
    if budget is None:
        return
    budget.left -= steps
    if budget.left < 0:
        raise OutOfWork
