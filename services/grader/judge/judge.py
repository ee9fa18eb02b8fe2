"""The judge, as verifiers know it: a question in, a verdict out, or why there is none.

Whether it is up is one state, which one watcher changes between two awaits: no call can miss a
change. Any number of calls may doubt it: they share the next self-test that ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from prometheus_client import Counter, Gauge
from protocol.messages import Task, Ungradable

from services.chassis.faults import WorkerFault
from services.grader.judge.chat import FAILED, OVER_CONTEXT, Chat, ChatError
from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import NoVerdict, Question, Verdict, as_json
from services.grader.judge.settings import MODEL, URL, JudgeSettings
from services.grader.shared_work import SharedWork
from services.grader.trial_record import record_failure

log = logging.getLogger(__name__)
UP = Gauge("weir_judge_up", "1 while the judge passes its self-test, 0 while it is down", ["model"])
WAITING = Gauge("weir_judge_waiting", "Questions that wait for the judge to be up or to be free")
CANARIES = Counter(
    "weir_judge_canaries_total",
    "Known solutions that the judge was asked about, by their level and by the judge's",
    ["level", "judged"],
)
CANARY_EVERY = 200  # questions
_CANARIES_TEXT = Path(__file__).with_name("canaries.jsonl").read_text("utf-8")
_CANARIES = list(map(json.loads, _CANARIES_TEXT.splitlines()))
_UNTESTED = "starting"
_RUBRIC = load_rubric("holistic")
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
_CALLS_AT_FIRST, _FEWEST_CALLS = 32, 8  # at once; any server answers the latter in good time
_OUTAGES = 2  # under one question, first among others, any of which may have done it, then alone

Answer = Verdict | Ungradable


class JudgeDown(WorkerFault):
    """The judge is down, and whoever asks does not wait; the text says why."""


class Health:
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

        Waits for: a doubt, or a pause if it is down. Unblocked by: deadlines, `clears`, time.
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
        """The count of outages; `JudgeDown` if the judge is down and not patient."""
        with WAITING.track_inprogress():
            while not self.is_up:
                if not self.settings.patient and self.why_down != _UNTESTED:
                    what = f"the judge is not up: {self.why_down}"
                    raise JudgeDown(f"{what}; start it, or unset {URL}")
                await self._next_test.wait()
        return self.outages

    async def clears(self, outages: int) -> bool:
        """Whether a test passes now, with no outage since ``outages`` were counted."""
        if outages == self.outages:
            self._doubted.set()
            await self._next_test.wait()
        return outages == self.outages

    def _conclude(self, why_down: str | None) -> None:
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


class Judge(Health):
    """A model that grades. While it is down, questions wait, or raise `JudgeDown` if not patient.

    Ungradable are ``no_verdict`` (no attempt gave a form filled in), ``verdict_cut`` (the last one
    used up its tokens), ``over_judge_context``, ``judge_refused``, ``judge_failed`` and
    ``judge_timeout``. Every attempt has the question's effort, temperature and tokens.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        super().__init__(settings, self._examine)
        self.refuses_all = False  # it takes no call, as one of another name or key, and never has
        self._chat = Chat(settings)
        self._has_passed = False
        self._num_examinations = 0  # each has another seed, so that none is told what was cached
        self._slots = Slots(settings.concurrency)
        self._pace = Pace(settings.concurrency, settings.timeout_s)
        self._sharing: SharedWork[Answer] = SharedWork()
        self._beside = asyncio.TaskGroup()
        self._num_questions = 0

    async def __aenter__(self) -> Self:
        await self._beside.__aenter__()
        self._watching = self._beside.create_task(self.watch_forever())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._watching.cancel()
        await self._sharing.close()
        await self._chat.__aexit__()
        await self._beside.__aexit__(None, None, None)  # which wraps no error of its user's

    async def ask(self, question: Question, samples: int = 1) -> list[Answer]:
        """Verdicts of so many samples, or why there is none; `JudgeDown` if that is not waited for.

        Waits for: the judge to be up, a free slot, its answers. Unblocked by: those; deadlines.
        """
        self._num_questions += 1
        turn, questions_since = divmod(self._num_questions, CANARY_EVERY)
        canary = None if questions_since else _CANARIES[turn % len(_CANARIES)]
        asked = [question.sample(number) for number in range(samples)]
        if canary:
            task, response = Task(**canary["task"]), canary["response"]
            asked.append(
                replace(
                    question,
                    messages=rubric_messages(_RUBRIC, task, response),
                    form=rubric_form(_RUBRIC),
                )
            )
        answers = await asyncio.gather(*map(self._shared, asked))
        if canary:
            answer = answers.pop()
            judged = "none" if isinstance(answer, Ungradable) else str(answer["solution"])
            CANARIES.labels(canary["level"], judged).inc()
        return answers

    async def _shared(self, question: Question) -> Answer:
        """Equal questions at one time are one call."""
        return await self._sharing.once(as_json(question.request), lambda: self._asked(question))

    async def _asked(self, question: Question) -> Answer:
        """Ask among others; if the judge goes down under it again and again, alone.

        The slots are kept until there is an answer: whoever tries again does not queue again.
        """
        for alone in (False, True):
            async with self._slots.taken(alone=alone):
                for _ in range(_OUTAGES):
                    answer = await self._asked_while_up(question)
                    if answer is not None:
                        return answer
        log.error("the judge went down again and again under one question that it had alone")
        return Ungradable(reason=FAILED)

    async def _asked_while_up(self, question: Question) -> Answer | None:
        """Ask while the judge is up; None if it goes down meanwhile.

        If it passes its self-test after attempts that all failed, one attempt more decides: the
        failures may be those of an outage that nobody else saw.
        """
        pauses_s = (0.0, *self.settings.pauses_s)
        outages = await self.until_up()
        outcome = await self._attempted(question, pauses_s)
        if isinstance(outcome, ChatError) and await self.clears(outages):
            outcome = await self._attempted(question.attempt(len(pauses_s)), (0.0,))
        if not isinstance(outcome, ChatError):
            return outcome
        return _ungradable(outcome) if await self.clears(outages) else None

    async def _attempted(
        self, question: Question, pauses_s: tuple[float, ...]
    ) -> Answer | ChatError:
        """The first answer of several attempts, or how the last failed that says nothing of it."""
        failure: Answer | ChatError = Ungradable(reason="no_verdict")
        for number, pause_s in enumerate(pauses_s):
            await asyncio.sleep(pause_s)
            try:
                async with self._pace.call():
                    return await self._chat.ask(question.attempt(number))
            except NoVerdict as error:
                failure = Ungradable(reason=error.reason)
            except ChatError as error:
                failure = error
                if error.is_of_request:
                    return _ungradable(error)
                if not error.may_pass:
                    break
        return failure

    async def _examine(self) -> str | None:
        self._num_examinations += 1
        try:
            why = await examine(self._chat, seed=self._num_examinations)
        except ChatError as error:
            self.refuses_all = not (self._has_passed or error.may_pass)
            return str(error)
        self.refuses_all = False
        self._has_passed |= why is None
        return why


def _ungradable(error: ChatError) -> Ungradable:
    if not error.may_pass and error.reason != OVER_CONTEXT:
        log.error("the judge refused a request", extra={"answer": str(error)})
    record_failure(error.reason, str(error))
    return Ungradable(reason=error.reason)


class Slots:
    """Who comes first is let in first: nobody passes one who waits to be alone."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = asyncio.Semaphore(number)

    @asynccontextmanager
    async def taken(self, *, alone: bool = False) -> AsyncIterator[None]:
        """A slot among others, or all slots; unblocked by whoever leaves.

        Two who wait to be alone with one slot each would wait for ever.
        """
        async with AsyncExitStack() as held:
            wanted = self._number if alone else 1
            with WAITING.track_inprogress():  # all side by side in the semaphore's queue
                entering = (held.enter_async_context(self._free) for _ in range(wanted))
                await asyncio.gather(*entering)
            yield


def calls_after(calls: int, seconds: float, timeout_s: float, *, has_failed: bool) -> int:
    """How many calls a judge gets at once, after one that took so long while it had so many.

    One more if that is a quarter of the time limit or less. While a server's speed is the same,
    growth then ends before calls take half of the limit, however many graders ask it.
    """
    if has_failed:
        return calls - max(1, calls // 8)
    return calls + (seconds <= timeout_s / 4)


class Pace:
    """Lets as many calls through at once as the judge answers in good time."""

    def __init__(self, most: int, timeout_s: float) -> None:
        self.calls = min(_CALLS_AT_FIRST, most)
        self._fewest, self._most = min(_FEWEST_CALLS, most), most
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(self.calls)
        self._withheld = 0  # of those that leave, so many make no room

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        with WAITING.track_inprogress():
            await self._free.acquire()
        began, has_failed = time.monotonic(), False
        try:
            yield
        except ChatError as error:
            has_failed = error.may_pass
            raise
        except asyncio.CancelledError:  # which says nothing of the judge
            began = float("-inf")
            raise
        finally:
            seconds = time.monotonic() - began
            calls = calls_after(self.calls, seconds, self._timeout_s, has_failed=has_failed)
            if not self._free.locked():  # fewer than may be were on their way: no reason for more
                calls = min(calls, self.calls)
            calls = max(self._fewest, min(calls, self._most))
            self._withheld += self.calls - calls - 1
            self.calls = calls
            while self._withheld < 0:
                self._withheld += 1
                self._free.release()


async def examine(chat: Chat, seed: int) -> str | None:
    """Why the judge is of no use, or None if it tells right from wrong."""
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
    question = Question(
        rubric_messages(_RUBRIC, _TASK, solution),
        rubric_form(_RUBRIC),
        reasoning_effort="low",
        max_tokens=2048,
        seed=seed,
    )
    try:
        verdict = await chat.ask(question)
    except NoVerdict:
        verdict = await chat.ask(question.attempt(1))
    return _RUBRIC.score({name: str(value) for name, value in verdict.items()})
