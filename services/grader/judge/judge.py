"""The judge as verifiers see it: they ask a question and get a verdict, or the reason without one.

Whether it is up is one state, which one task changes between two awaits, so no call misses a
change. Calls that doubt it share the next self-test.
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
from services.grader.judge.question import NoVerdict, Question, Verdict, encode_json
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
_CANARY_FILE = Path(__file__).with_name("canaries.jsonl")
_CANARIES = [json.loads(line) for line in _CANARY_FILE.read_text("utf-8").splitlines()]
_NOT_TESTED = "starting"
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
_INITIAL_CALLS = 32
_MIN_CALLS = 8  # any server answers this many calls at once in good time
# Another question may cause an outage, so a question is asked again after the first. Then it is
# asked alone.
_MAX_OUTAGES = 2

Answer = Verdict | Ungradable


class JudgeDown(WorkerFault):
    """The judge is down, and its questions do not wait; the text says why."""


class Health:
    def __init__(self, settings: JudgeSettings, test: Callable[[], Awaitable[str | None]]) -> None:
        self.settings = settings
        self.is_up = False
        self.why_down = _NOT_TESTED
        self.outages = 0  # failed tests so far
        self._test = test
        self._doubted = asyncio.Event()
        self._next_test = asyncio.Event()  # set, and replaced, when a test has ended

    async def watch_forever(self) -> None:
        """Consumes doubts; produces the state.

        Waits for: a doubt, or a pause if it is down. Unblocked by: deadlines, `passes_test`, time.
        """
        min_pause_s, max_pause_s = self.settings.retest_s
        pause_s = min_pause_s
        while True:
            self._update(await self._test())
            if self.is_up:
                pause_s = min_pause_s
                await self._doubted.wait()
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, max_pause_s)

    async def wait_until_up(self) -> int:
        """Return the number of outages; raise `JudgeDown` if it is down and not patient."""
        with WAITING.track_inprogress():
            while not self.is_up:
                if not self.settings.patient and self.why_down != _NOT_TESTED:
                    problem = f"the judge is not up: {self.why_down}"
                    raise JudgeDown(f"{problem}; start it, or unset {URL}")
                await self._next_test.wait()
        return self.outages

    async def passes_test(self, outages: int) -> bool:
        """Return whether a test passes now, without an outage since ``outages`` were counted."""
        if outages == self.outages:
            self._doubted.set()
            await self._next_test.wait()
        return outages == self.outages

    def _update(self, why_down: str | None) -> None:
        model = self.settings.model
        if why_down is None and not self.is_up:
            log.info("the judge is up", extra={"model": model})
        elif why_down is not None and why_down != self.why_down:
            log.warning("the judge is down", extra={"model": model, "why": why_down})
        self.is_up = why_down is None
        self.why_down = why_down or ""
        self.outages += not self.is_up
        UP.labels(model).set(self.is_up)
        self._doubted.clear()
        self._next_test.set()
        self._next_test = asyncio.Event()


class Judge(Health):
    """A model that grades. While it is down, questions wait, or raise `JudgeDown` if not patient.

    Reasons for ungradable: ``no_verdict`` (no attempt filled in the form), ``verdict_cut`` (the
    last one used up its tokens), ``over_judge_context``, ``judge_refused``, ``judge_failed`` and
    ``judge_timeout``. Every attempt has the question's effort, temperature and tokens.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        super().__init__(settings, self._examine)
        # It has refused all calls from the start, as with a wrong model name or key.
        self.refuses_all = False
        self._chat = Chat(settings)
        self._has_passed = False
        self._num_examinations = 0  # the seed, so that no reply comes from a cache
        self._slots = Slots(settings.concurrency)
        self._pace = Pace(settings.concurrency, settings.timeout_s)
        self._shared: SharedWork[Answer] = SharedWork()
        self._tasks = asyncio.TaskGroup()
        self._num_questions = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._watching = self._tasks.create_task(self.watch_forever())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._watching.cancel()
        await self._shared.close()
        await self._chat.__aexit__()
        await self._tasks.__aexit__(None, None, None)  # the body's own error is not wrapped

    async def ask(self, question: Question, samples: int = 1) -> list[Answer]:
        """Return a verdict, or the reason without one, for each sample.

        Waits for: the judge to be up, a free slot, its answers. Unblocked by: those; deadlines.

        Raises:
            JudgeDown: if the judge is down and not patient.
        """
        self._num_questions += 1
        round_number, remainder = divmod(self._num_questions, CANARY_EVERY)
        canary = None if remainder else _CANARIES[round_number % len(_CANARIES)]
        questions = [question.for_sample(number) for number in range(samples)]
        if canary:
            messages = rubric_messages(_RUBRIC, Task(**canary["task"]), canary["response"])
            questions.append(replace(question, messages=messages, form=rubric_form(_RUBRIC)))
        answers = await asyncio.gather(*map(self._ask_once, questions))
        if canary:
            answer = answers.pop()
            judged = "none" if isinstance(answer, Ungradable) else str(answer["solution"])
            CANARIES.labels(canary["level"], judged).inc()
        return answers

    async def _ask_once(self, question: Question) -> Answer:
        """Make one call for equal questions at the same time."""
        key = encode_json(question.request)
        return await self._shared.run_once(key, lambda: self._ask(question))

    async def _ask(self, question: Question) -> Answer:
        """Ask next to other questions; if the judge goes down repeatedly, ask alone.

        A question keeps its slots until it has an answer, so that a retry does not queue again.
        """
        for alone in (False, True):
            async with self._slots.take(alone=alone):
                for _ in range(_MAX_OUTAGES):
                    answer = await self._ask_while_up(question)
                    if answer is not None:
                        return answer
        log.error("the judge went down repeatedly under one question that was asked alone")
        return Ungradable(reason=FAILED)

    async def _ask_while_up(self, question: Question) -> Answer | None:
        """Ask while the judge is up; return None if it goes down meanwhile.

        If all attempts fail and the judge then passes its self-test, one more attempt decides: an
        outage that nothing else noticed may have caused the failures.
        """
        pauses_s = (0.0, *self.settings.pauses_s)
        outages = await self.wait_until_up()
        outcome = await self._attempt(question, pauses_s)
        if isinstance(outcome, ChatError) and await self.passes_test(outages):
            outcome = await self._attempt(question.for_attempt(len(pauses_s)), (0.0,))
        if not isinstance(outcome, ChatError):
            return outcome
        return _to_ungradable(outcome) if await self.passes_test(outages) else None

    async def _attempt(self, question: Question, pauses_s: tuple[float, ...]) -> Answer | ChatError:
        """Return the first answer, or the last error if that is not the question's fault."""
        failure: Answer | ChatError = Ungradable(reason="no_verdict")
        for number, pause_s in enumerate(pauses_s):
            await asyncio.sleep(pause_s)
            try:
                async with self._pace.limit():
                    return await self._chat.ask(question.for_attempt(number))
            except NoVerdict as error:
                failure = Ungradable(reason=error.reason)
            except ChatError as error:
                failure = error
                if error.is_of_request:
                    return _to_ungradable(error)
                if not error.is_temporary:
                    break
        return failure

    async def _examine(self) -> str | None:
        self._num_examinations += 1
        try:
            problem = await examine(self._chat, seed=self._num_examinations)
        except ChatError as error:
            self.refuses_all = not (self._has_passed or error.is_temporary)
            return str(error)
        self.refuses_all = False
        self._has_passed |= problem is None
        return problem


def _to_ungradable(error: ChatError) -> Ungradable:
    if not error.is_temporary and error.reason != OVER_CONTEXT:
        log.error("the judge refused a request", extra={"answer": str(error)})
    record_failure(error.reason, str(error))
    return Ungradable(reason=error.reason)


class Slots:
    """Slots in order of arrival: no question overtakes one that waits to be alone."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = asyncio.Semaphore(number)

    @asynccontextmanager
    async def take(self, *, alone: bool = False) -> AsyncIterator[None]:
        """Take one slot, or all of them; unblocked by other questions that leave.

        All are requested at once: two questions with half of the slots each would deadlock.
        """
        count = self._number if alone else 1
        async with AsyncExitStack() as stack:
            with WAITING.track_inprogress():
                entering = (stack.enter_async_context(self._free) for _ in range(count))
                await asyncio.gather(*entering)
            yield


def adjust_calls(calls: int, seconds: float, timeout_s: float, *, has_failed: bool) -> int:
    """Return how many calls to allow at once, after a call that took so long among ``calls``.

    One more if it took at most a quarter of the timeout. At a constant server speed growth then
    ends before calls take half of the timeout, with any number of graders.
    """
    if has_failed:
        return calls - max(1, calls // 8)
    return calls + (seconds <= timeout_s / 4)


class Pace:
    """Limits the calls at once to the number that the judge answers in good time."""

    def __init__(self, max_calls: int, timeout_s: float) -> None:
        self.calls = min(_INITIAL_CALLS, max_calls)
        self._min_calls = min(_MIN_CALLS, max_calls)
        self._max_calls = max_calls
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(self.calls)
        self._withheld = 0  # this many calls free no slot when they end

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        with WAITING.track_inprogress():
            await self._free.acquire()
        started = time.monotonic()
        has_failed = False
        try:
            yield
        except ChatError as error:
            has_failed = error.is_temporary
            raise
        except asyncio.CancelledError:
            started = float("-inf")  # the time of a cancelled call proves nothing
            raise
        finally:
            seconds = time.monotonic() - started
            calls = adjust_calls(self.calls, seconds, self._timeout_s, has_failed=has_failed)
            if not self._free.locked():  # unused slots are no reason for more
                calls = min(calls, self.calls)
            calls = max(self._min_calls, min(calls, self._max_calls))
            self._withheld += self.calls - calls - 1
            self.calls = calls
            while self._withheld < 0:
                self._withheld += 1
                self._free.release()


async def examine(chat: Chat, seed: int) -> str | None:
    """Return why the judge is unusable, or None if it tells right from wrong."""
    try:
        right = await _score_solution(chat, RIGHT, seed)
        wrong = await _score_solution(chat, WRONG, seed)
    except NoVerdict as error:
        problem = f"gives no verdict on a solution known to be right or wrong: {error}"
    else:
        if right > wrong:
            return None
        problem = f"gave {wrong:g} to a wrong solution and {right:g} to a right one"
    return f"{problem}; check {MODEL}"


async def _score_solution(chat: Chat, solution: str, seed: int) -> float:
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
        verdict = await chat.ask(question.for_attempt(1))
    return _RUBRIC.score({name: str(value) for name, value in verdict.items()})
