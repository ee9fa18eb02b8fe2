"""Token buckets: how often somebody may do something."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

_MOST = 10_000  # whom a bucket is kept for; the one unused for longest goes first


class Buckets:
    """A bucket each for whoever asks: it holds ``size`` tokens, and ``per_s`` come back."""

    def __init__(
        self, size: float, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.size = size
        self.per_s = per_s
        self.clock = clock
        self._levels: dict[Hashable, tuple[float, float]] = {}  # tokens, and when

    def take(self, who: Hashable, tokens: float = 1.0) -> float:
        """Take tokens; 0 if they were there, else how many seconds from now they will be."""
        now = self.clock()
        level, then = self._levels.pop(who, (self.size, now))
        level = min(self.size, level + (now - then) * self.per_s)
        wait_s = max(0.0, (tokens - level) / self.per_s)
        self._levels[who] = (level if wait_s else level - tokens, now)
        if len(self._levels) > _MOST:
            del self._levels[next(iter(self._levels))]
        return wait_s

    def give_back(self, who: Hashable) -> None:
        """Put a token back that was not needed."""
        self.take(who, -1.0)
