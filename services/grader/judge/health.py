"""Whether the judge is up: one watcher tests it, any number of calls doubt it.

There is one state, which only the watcher changes, and between two awaits: no call can miss a
change. A call that doubts waits for the next test that ends; doubts that come before it has ended
share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Gauge

from services.chassis.faults import WorkerFault
from services.grader.judge.settings import URL, JudgeSettings

UP = Gauge("weir_judge_up", "1 while the judge passes its self-test, 0 while it is down", ["model"])
WAITING = Gauge("weir_judge_waiting", "Questions that wait for the judge to be up or to be free")
log = logging.getLogger(__name__)


class JudgeDown(WorkerFault):
    """The judge is down, and whoever asks does not wait; the text says why."""


class Health:
    """``is_up`` says whether the last test was passed, ``why_down`` what it found.

    ``test`` says why the judge is of no use, or None.
    """

    def __init__(self, settings: JudgeSettings, test: Callable[[], Awaitable[str | None]]) -> None:
        self.settings = settings
        self.is_up = False
        self.why_down = "starting"
        self.outages = 0  # tests failed so far
        self._test = test
        self._doubted = asyncio.Event()
        self._next_test = asyncio.Event()  # set, and replaced, when a test has ended

    async def watch_forever(self) -> None:
        """Consumes doubts; produces the state.

        Waits for: a test to end, then a doubt, or a pause if the judge is down. Unblocked by: the
        deadlines of a test's calls, `clears`, time.
        """
        shortest_s, longest_s = self.settings.retest_s
        pause_s = shortest_s
        while True:
            self._conclude(await self._test())
            if self.is_up:
                pause_s = shortest_s
                await self._doubted.wait()
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def until_up(self) -> int:
        """Waits for a test that is passed; the count of outages until then. Unblocked by: tests.

        Raises:
            JudgeDown: if the judge is down and not patient.
        """
        with WAITING.track_inprogress():
            while not self.is_up:
                if not self.settings.patient and self.outages:  # it has been tested
                    what = f"the judge is not up: {self.why_down}"
                    raise JudgeDown(f"{what}; start it, or unset {URL}")
                await self._next_test.wait()
        return self.outages

    async def clears(self, outages: int) -> bool:
        """Whether a test passes now, with no outage since ``outages`` were counted.

        Waits for: the next test that ends. Unblocked by: the watcher.
        """
        if outages == self.outages:
            self._doubted.set()
            await self._next_test.wait()
        return outages == self.outages

    def _conclude(self, why_down: str | None) -> None:
        """Let everybody know; whoever doubted until now has been heard."""
        model = self.settings.model
        if why_down is None and not self.is_up:
            log.info("the judge is up", extra={"model": model})
        elif why_down is not None and why_down != self.why_down:
            log.warning("the judge is down", extra={"model": model, "why": why_down})
        self.is_up, self.why_down = why_down is None, why_down or ""
        self.outages += not self.is_up
        UP.labels(model).set(self.is_up)
        self._doubted.clear()
        self._next_test.set()
        self._next_test = asyncio.Event()
