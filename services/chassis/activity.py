"""The readiness and the current activity of a process, so that a stall can be explained."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from protocol.messages import Capabilities, Doing, ParityReport

from services.chassis import metrics

_MAX_PARITY_REPORTS = 8  # several weights versions may follow within one heartbeat
log = logging.getLogger(__name__)


@dataclass
class Readiness:
    """Whether the service can do its work now, and if not, why."""

    ready: bool = False
    why: str = "starting"
    started: bool = False  # `set` has been called
    was_ready: bool = False
    since: float = field(default_factory=time.monotonic)
    fault: str = ""  # of the process itself
    _without_fault: tuple[bool, str] = (True, "")

    def set_fault(self, fault: str) -> None:
        """Make the service not ready, until this is called with an empty fault."""
        self.fault = fault
        self.set(*self._without_fault)

    def set(self, ready: bool, why: str = "") -> None:
        self._without_fault = ready, why
        if ready and self.fault:
            ready = False
            why = self.fault
        if (ready, why) != (self.ready, self.why):
            log.info("ready" if ready else "not ready", extra={"why": why})
            self.since = time.monotonic()
        self.ready = ready
        self.why = why
        self.started = True
        self.was_ready = self.was_ready or ready
        metrics.READY.set(ready)


@dataclass(eq=False)
class Work:
    """An activity that has begun and not ended."""

    doing: Doing
    number: int | None = None  # of the step or the weights version
    waits_for: Callable[[], Sequence[str]] = tuple  # returns keys of groups
    since: float = field(default_factory=time.monotonic)


class Activity:
    """The current activities of a process: the last one to begin counts, or else ``idle``."""

    def __init__(self) -> None:
        self.idle = Work(Doing.STARTS)
        self.holds: dict[str, float] = {}  # keys of leased groups, and since when
        self.moved: Callable[[], int] = int  # of a rollout: see `Status`
        self.at_once: Callable[[], int] = int  # of episodes: see `Status`
        self.capabilities: Capabilities | None = None  # of a grader
        self.parity = deque[ParityReport](maxlen=_MAX_PARITY_REPORTS)  # of a rollout
        self._works: list[Work] = []

    @property
    def now(self) -> Work:
        return self._works[-1] if self._works else self.idle

    def set_idle(self, doing: Doing) -> None:
        if doing is not self.idle.doing:
            self.idle = Work(doing)

    @contextmanager
    def during(
        self,
        doing: Doing,
        number: int | None = None,
        waits_for: Callable[[], Sequence[str]] = tuple,
        *,
        timed: str | None = None,
    ) -> Iterator[None]:
        """Report an activity while the body runs; its time counts for the phase ``timed``."""
        work = Work(doing, number, waits_for)
        self._works.append(work)
        try:
            with metrics.PHASES.during(timed) if timed else nullcontext():
                yield
        finally:
            self._works.remove(work)

    def set_held(self, keys: Iterable[str]) -> None:
        now = time.monotonic()
        self.holds = {key: self.holds.get(key, now) for key in keys}
