"""The same work on many items, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def results_of(
    work: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item], *, at_once: int
) -> list[Result]:
    """The result of each item, in the order of the items."""
    slots = asyncio.Semaphore(at_once)

    async def result_of(item: Item) -> Result:
        async with slots:
            return await work(item)

    return await asyncio.gather(*map(result_of, items))
