"""The judge, as verifiers know it: a question in, a verdict out, or why there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from protocol.messages import Ungradable

from services.grader.judge.chat import FAILED, OVER_CONTEXT, Chat, ChatError
from services.grader.judge.health import WAITING, Health, examine
from services.grader.judge.question import NoVerdict, Question, Verdict, as_json
from services.grader.judge.settings import JudgeSettings
from services.grader.shared_work import SharedWork
from services.grader.trial_record import record_failure

log = logging.getLogger(__name__)

_OUTAGES = 2  # under one question, first among others, any of which may have done it, then alone

Answer = Verdict | Ungradable


class Judge(Health):
    """A model that grades. Use it as ``async with Judge(...)``, which watches over it meanwhile.

    While the judge is down, questions wait, or raise `JudgeDown` if its settings are not patient.
    A question is *ungradable* for one of these reasons: ``no_verdict`` (no attempt gave a form
    filled in), ``over_judge_context`` (it leaves no room for an answer), ``judge_refused``,
    ``judge_failed`` and ``judge_timeout`` (so its attempts ended, though the judge is up).
    """

    def __init__(self, settings: JudgeSettings) -> None:
        super().__init__(settings, self._examine)
        self.refuses_all = False  # it takes no call, as one of another name or key, and never has
        self._chat = Chat(settings)
        self._has_passed = False
        self._num_examinations = 0  # each has another seed, so that none is told what was cached
        self._slots = Slots(settings.concurrency)
        self._sharing: SharedWork[Answer] = SharedWork()
        self._beside = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Begin to watch; should that fail, so does whoever uses the judge."""
        await self._beside.__aenter__()
        self._watching = self._beside.create_task(self.watch_forever())
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Give up what is under way and close all connections."""
        self._watching.cancel()
        await self._sharing.close()
        await self._chat.__aexit__()
        await self._beside.__aexit__(None, None, None)  # which wraps no error of its user's

    async def ask(self, question: Question, samples: int = 1) -> list[Answer]:
        """Verdicts of so many samples, or why there is none, in the order of their seeds.

        Waits for: the judge to be up, a free slot, its answers. Unblocked by: those; deadlines.

        Raises:
            JudgeDown: if the judge is down, and not patient.
        """
        asked = [question.sample(number) for number in range(samples)]
        return await asyncio.gather(*map(self._shared, asked))

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
        """Wait for the judge to be up, and ask; None if it goes down meanwhile.

        Attempts that all failed cast doubt on the judge. If it passes its self-test, one attempt
        more decides: the failures may be those of an outage that nobody else saw.
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
                return await self._chat.ask(question.attempt(number))
            except NoVerdict as error:
                failure, question = Ungradable(reason="no_verdict"), question.after(error)
            except ChatError as error:
                failure = error
                if error.is_of_request:
                    return _ungradable(error)
                if not error.may_pass:
                    break
        return failure

    async def _examine(self) -> str | None:
        """The self-test: on the way of all calls, but past their slots."""
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
        """A slot beside others, or all slots.

        Waits for: as many to be free. Unblocked by: whoever leaves. Who is to be alone must have
        left before: two who wait with one slot each would wait for ever.
        """
        async with AsyncExitStack() as held:
            wanted = self._number if alone else 1
            with WAITING.track_inprogress():  # all side by side in the semaphore's queue
                entering = (held.enter_async_context(self._free) for _ in range(wanted))
                await asyncio.gather(*entering)
            yield
