"""What a process says of itself: whether it is ready, and what it does, so a stall has a name."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from protocol.messages import Capabilities, Doing, ParityReport

from services.chassis import metrics

_REPORTS = 8  # versions may follow one another faster than heartbeats
log = logging.getLogger(__name__)


@dataclass
class Readiness:
    """Whether the service can do its work now, and if not, what it waits for."""

    ready: bool = False
    why: str = "starting"
    started: bool = False  # it has said for itself whether it is ready
    was_ready: bool = False
    since: float = field(default_factory=time.monotonic)
    fault: str = ""  # of its own, found while it worked
    _otherwise: tuple[bool, str] = (True, "")  # what it is but for the fault

    def set_fault(self, fault: str) -> None:
        """It is not ready, though all else is there, until this is called with no fault."""
        self.fault = fault
        self.set(*self._otherwise)

    def set(self, ready: bool, why: str = "") -> None:
        self._otherwise = ready, why
        if ready and self.fault:
            ready, why = False, self.fault
        if (ready, why) != (self.ready, self.why):
            log.info("ready" if ready else "not ready", extra={"why": why})
            self.since = time.monotonic()
        self.ready, self.why, self.started = ready, why, True
        self.was_ready = self.was_ready or ready
        metrics.READY.set(ready)


@dataclass(eq=False)
class Work:
    """Something that was begun, and has not ended."""

    doing: Doing
    number: int | None = None  # of the step or the version
    waits_for: Callable[[], Sequence[str]] = tuple  # keys of groups
    since: float = field(default_factory=time.monotonic)


class Activity:
    """What a process does: what it began last and has not ended, or else what it does at rest."""

    def __init__(self) -> None:
        self.rest = Work(Doing.STARTS)
        self.holds: dict[str, float] = {}  # keys of groups, and since when
        self.moved: Callable[[], int] = int  # of a rollout: see `Status`
        self.at_once: Callable[[], int] = int  # of episodes: see `Status`
        self.capabilities: Capabilities | None = None  # of a grader
        self.parity = deque[ParityReport](maxlen=_REPORTS)  # of a rollout
        self._begun: list[Work] = []

    @property
    def now(self) -> Work:
        return self._begun[-1] if self._begun else self.rest

    def set_idle(self, doing: Doing) -> None:
        if doing is not self.rest.doing:
            self.rest = Work(doing)

    @contextmanager
    def during(
        self,
        doing: Doing,
        number: int | None = None,
        waits_for: Callable[[], Sequence[str]] = tuple,
        *,
        timed: str | None = None,
    ) -> Iterator[None]:
        """Say what it does in the body, whose time counts as that of the phase ``timed``."""
        work = Work(doing, number, waits_for)
        self._begun.append(work)
        try:
            with metrics.PHASES.during(timed) if timed else nullcontext():
                yield
        finally:
            self._begun.remove(work)

    def set_held(self, keys: Iterable[str]) -> None:
        now = time.monotonic()
        self.holds = {key: self.holds.get(key, now) for key in keys}
