"""Places: limits of the long or large requests that one key may have at the same time.

Short requests need no place, so they are served however many others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import Depends, Request

from services.gateway.errors import RETRY_AFTER_S, Problem

UNLIMITED = 2**31


class Places:
    """A dependency of routes: each request takes a place of its key, or gets 429."""

    def __init__(self, per_key: int, total: int = UNLIMITED) -> None:
        self._per_key = per_key
        self._total = total
        self._requests = Counter[str]()  # by the name of their key

    @contextmanager
    def take(self, request: Request) -> Iterator[None]:
        key = request.scope["key"].name
        total = self._requests.total()
        if self._requests[key] >= self._per_key or total >= self._total:
            message = (
                f"{self._requests[key]} requests of this kind are open with this key, and {total} "
                "with all keys; wait until one ends"
            )
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise Problem(429, message, code="too_many_requests", headers=headers)
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            self._requests += Counter()  # drops keys without requests

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        with self.take(request):
            yield


CALLS = Depends(Places(512))
WAITING = Places(1024)  # streams of events, results, downloads
TRIALS = Depends(Places(8))
UPLOADS = Depends(Places(4, total=64))
PASSES = Depends(Places(8, total=64))  # their bodies are in memory
