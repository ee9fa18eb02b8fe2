"""Places: how many requests of one key may wait, or send and fetch much, at the same time.

Short requests need none, so they are answered however many others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import Depends, Request

from services.gateway.errors import Problem


class Places:
    """A dependency of routes: each request takes a place of its key, or is answered with 429."""

    def __init__(self, per_key: int, total: int = 2**31) -> None:
        self._per_key = per_key
        self._total = total
        self._taken = Counter[str]()

    @contextmanager
    def take(self, request: Request) -> Iterator[None]:
        key = request.scope["key"].name
        if self._taken[key] >= self._per_key or self._taken.total() >= self._total:
            message = f"{self._taken[key]} requests like this one are under way with this key, and "
            message += f"{self._taken.total()} with all keys; wait until one is over"
            headers = {"Retry-After": "2"}
            raise Problem(429, message, code="too_many_requests", headers=headers)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            self._taken += Counter()  # drops the keys that have none

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        with self.take(request):
            yield


CALLS = Depends(Places(512))
WAITING = Places(1024)  # for events and results, and with downloads
TRIALS = Depends(Places(8))
UPLOADS = Depends(Places(4, total=64))
PASSES = Depends(Places(8, total=64))  # their bodies are in memory
