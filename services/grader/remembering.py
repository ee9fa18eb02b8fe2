"""What the pool found out is remembered for a while, and asked for once by all who need it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from services.grader.pool import Pool
from services.grader.sharing import Sharing

T = TypeVar("T")

_MAX_REMEMBERED = 4096


class _Memory:
    """The latest results of one pool, and what is under way in it."""

    def __init__(self) -> None:
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._under_way: Sharing[Any] = Sharing()

    async def recall(
        self, question: Hashable, work: Callable[[], Coroutine[Any, Any, Any]], but_not: object
    ) -> Any:
        if question in self._results:
            self._results.move_to_end(question)
            return self._results[question]
        result = await self._under_way.once(repr(question), work)
        if result != but_not:
            self._results[question] = result
        while len(self._results) > _MAX_REMEMBERED:
            self._results.popitem(last=False)
        return result


_MEMORIES: WeakKeyDictionary[Pool, _Memory] = WeakKeyDictionary()


async def remembered(
    pool: Pool, question: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, but_not: object
) -> T:
    """The result of ``work``, from memory or from whoever asks the same just now.

    The result ``but_not`` is not kept, as it may be another the next time. A caller that is
    cancelled stops nobody else's work.
    """
    return await _MEMORIES.setdefault(pool, _Memory()).recall(question, work, but_not)
