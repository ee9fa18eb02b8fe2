"""Whether the judge is up: one watcher tests it, any number of calls doubt it.

The test is a right and a wrong solution of a small problem, which the judge must tell apart.

There is one state, which only the watcher changes, and between two awaits: no call can miss a
change. A call that doubts waits for the next test that ends; doubts that come before it has ended
share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Gauge
from protocol.messages import Task

from services.chassis.faults import WorkerFault
from services.grader.judge.chat import Chat
from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import NoVerdict, Question
from services.grader.judge.settings import MODEL, URL, JudgeSettings

UP = Gauge("weir_judge_up", "1 while the judge passes its self-test, 0 while it is down", ["model"])
WAITING = Gauge("weir_judge_waiting", "Questions that wait for the judge to be up or to be free")
log = logging.getLogger(__name__)

_UNTESTED = "starting"
_TASK = Task(
    id="self-test",
    prompt="Show that the sum of two odd integers is even.",
    answer="shown",
    solution="Write the integers as 2a+1 and 2b+1 with integers a and b. Their sum is "
    "2a+1+2b+1 = 2(a+b+1), twice an integer, and therefore even.",
)
RIGHT = """Let m and n be odd. Then there are integers j and k with m = 2j + 1 and n = 2k + 1. So
m + n = (2j + 1) + (2k + 1) = 2j + 2k + 2 = 2(j + k + 1). As j + k + 1 is an integer, m + n is a
multiple of 2, which means that it is even."""
WRONG = """Let m and n be odd. Then m = 2j and n = 2k for some integers j and k, so m + n is
2(j - k). Since odd numbers are prime, j - k is odd. For example 3 + 4 = 7. Hence the sum is odd."""


class JudgeDown(WorkerFault):
    """The judge is down, and whoever asks does not wait; the text says why."""


class Health:
    """``is_up`` says whether the last test was passed, ``why_down`` what it found.

    ``test`` says why the judge is of no use, or None.
    """

    def __init__(self, settings: JudgeSettings, test: Callable[[], Awaitable[str | None]]) -> None:
        self.settings = settings
        self.is_up = False
        self.why_down = _UNTESTED
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
                if not self.settings.patient and self.why_down != _UNTESTED:
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


async def examine(chat: Chat, seed: int) -> str | None:
    """Why the judge is of no use, or None if it tells right from wrong.

    Raises:
        ChatError: if there is no answer.
    """
    try:
        right, wrong = await _grade(chat, RIGHT, seed), await _grade(chat, WRONG, seed)
    except NoVerdict as error:
        why = f"gives no verdict on a solution known to be right or wrong: {error}"
    else:
        if right > wrong:
            return None
        why = f"gave {wrong:g} to a wrong solution and {right:g} to a right one: it cannot judge"
    return f"{why}; check {MODEL}"


async def _grade(chat: Chat, solution: str, seed: int) -> float:
    rubric = load_rubric("holistic")
    question = Question(
        rubric_messages(rubric, _TASK, solution),
        rubric_form(rubric),
        reasoning_effort="low",
        max_tokens=2048,
        seed=seed,
    )
    try:
        verdict = await chat.ask(question)
    except NoVerdict as failure:
        verdict = await chat.ask(question.after(failure))
    return rubric.score({name: str(value) for name, value in verdict.items()})
