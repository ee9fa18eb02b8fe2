"""What a process is doing, in words, told with every heartbeat: so a stall has a name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from protocol.exchange import Disconnected, seat_of
from protocol.exchange.connection import Refused
from protocol.messages import JobEvent, Offers, Status

from services.chassis.metrics import PHASES

if TYPE_CHECKING:
    from services.chassis.service import Service

Phase = Literal["starting", "loading", "working", "waiting"]
_MOST_KEYS = 64
_MOST_WORDS = 300  # characters of an error
PARTING_S = 2.0


def _nothing() -> Sequence[str]:
    return ()


@dataclass(eq=False)
class Doing:
    """Something that was begun, and has not ended."""

    words: str
    phase: Phase = "working"
    waits_for: Callable[[], Sequence[str]] = _nothing  # keys of groups
    since: float = field(default_factory=time.monotonic)


class Activity:
    """What a process does: what it began last and has not ended, or else what it does at rest."""

    def __init__(self) -> None:
        self.rest = Doing("starts", "starting")
        self.holds: dict[str, float] = {}  # keys of groups, and since when
        self.offers: Offers | None = None  # of a grader
        self._begun: list[Doing] = []

    @property
    def now(self) -> Doing:
        """What it is doing."""
        return self._begun[-1] if self._begun else self.rest

    def rests(self, words: str, phase: Phase = "working") -> None:
        """Say what it does from now on, while it has begun nothing."""
        if words != self.rest.words:
            self.rest = Doing(words, phase)

    @contextmanager
    def during(
        self,
        words: str,
        phase: Phase = "working",
        waits_for: Callable[[], Sequence[str]] = _nothing,
        *,
        timed: str | None = None,
    ) -> Iterator[None]:
        """Say what it does in the body, whose time counts as that of the phase ``timed``."""
        doing = Doing(words, phase, waits_for)
        self._begun.append(doing)
        try:
            with PHASES.during(timed) if timed else nullcontext():
                yield
        finally:
            self._begun.remove(doing)

    def holding(self, keys: Iterable[str]) -> None:
        """Say which groups it has."""
        now = time.monotonic()
        self.holds = {key: self.holds.get(key, now) for key in keys}


@dataclass
class StatusTeller:
    """Tells the status of one life of a process."""

    service: Service
    starts: int = 1
    error: str | None = None  # that ended the last of them
    beats: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow_on(self) -> None:
        """Count on from the last life in this seat, if that was never ready."""
        with suppress(Refused, *Disconnected):
            last = (await self.service.exchange.statuses()).get(self._seat)
            if last is not None and last.starts > 0:
                self.starts, self.error = last.starts + 1, last.error

    async def tell_until_ended(self) -> None:
        """Consumes the service's activity and readiness; produces its status in the exchange.

        Waits for: the next heartbeat. Unblocked by: time. It goes on where the exchange fails: what
        follows from that is for the service's own work to say.
        """
        while not self.ended.is_set():
            with suppress(Refused, *Disconnected):
                await self.service.exchange.show_status(self.status())
            with suppress(TimeoutError):
                async with asyncio.timeout(self.service.deployment.heartbeat_s):
                    await self.ended.wait()

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave a status behind that tells of the next life, unless the process was told to stop.

        Args:
            error: that ended it; the active job hears of it if the process was never ready.
        """
        exchange = self.service.exchange
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(PARTING_S):
                if self.service.stopping.is_set():
                    await exchange.forget_status(self._seat)
                    return
                if error is not None and not self.service.readiness.was_ready:
                    self.error = first_words(error)
                    await self._tell_of_error(self.error)
                self.service.activity = Activity()
                self.service.readiness.started = self.service.readiness.ready = False
                await exchange.show_status(self.status())

    def status(self) -> Status:
        """What the process is doing now."""
        readiness, activity = self.service.readiness, self.service.activity
        if readiness.was_ready:
            self.starts, self.error = 0, None
        self.beats += 1
        now, doing = time.monotonic(), activity.now
        if doing is activity.rest and readiness.started and not readiness.ready:
            doing = Doing(readiness.why, "waiting", since=readiness.since)
        return Status(
            name=self.service.deployment.name or _name(self._seat),
            service=self.service.name,
            seat=self._seat,
            beats=self.beats,
            ready=readiness.ready,
            doing=doing.words,
            phase=doing.phase,
            for_s=now - doing.since,
            waits_for=tuple(doing.waits_for())[:_MOST_KEYS],
            holds={key: now - since for key, since in list(activity.holds.items())[:_MOST_KEYS]},
            waits_for_memory=self.service.exchange.waiting_for_memory > 0,
            starts=self.starts,
            error=self.error,
            offers=activity.offers,
        )

    async def _tell_of_error(self, error: str) -> None:
        """Tell the active job, at the first time, the second, the fourth, and so on."""
        job = await self.service.exchange.active()
        if job is None or self.starts & (self.starts - 1):
            return
        name = self.status().name
        event = JobEvent(
            id=f"start:{self.service.exchange.me}",
            job_id=job.job_id,
            created_at=time.time(),
            level="warn",
            message=f"{name} does not start: {error}; attempt {self.starts}; see its log",
            data={"service": self.service.name, "attempt": self.starts},
        )
        await self.service.exchange.record_event(event)

    @property
    def _seat(self) -> str:
        return seat_of(self.service.exchange.me)


def first_words(error: BaseException) -> str:
    """What an error says, on one line; of a group of errors, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"


def _name(seat: str) -> str:
    """A seat without its port."""
    return seat.rpartition("-")[0] or seat
