"""The feeder: requests groups of training tasks ahead of the steps that use them.

The number of a request decides its seed, and the curriculum its task, so that a new attempt
requests the same group. The `Lookahead` limits the requests, and gives the step that a number is
expected to serve; it changes whenever the learner inspects a group. Weights may be at most
``max_staleness`` older than the expected step: ``min_version`` is that step minus
``max_staleness``.

There is no deadlock between requests and versions:

1. A request in step s has an expected step of at most s + max_staleness, so its ``min_version`` is
   at most s. That policy is published when step s begins; it needs no group requested in step s or
   later.
2. The learner inspects the group in step s or later, since it inspects groups in the order of their
   numbers. So published weights can sample every group that it waits for, even if the expected
   step was wrong.
3. A new attempt begins at an earlier step and finds requests of the last one. The last attempt
   reached their step s with groups that are in the log. The new attempt selects the same groups
   (`Selection` is pure), so it reaches step s, and publishes, before it waits.

The expected step, and so ``min_version``, never decreases from one number to the next. If a step
inspects fewer groups than expected, a later step finds the others, perhaps too old. It drops those
as surplus, and no group older than ``max_staleness`` is trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocol.messages import RolloutRequest
from protocol.recipe import Purpose

from services.learner.attempt import Attempt
from services.learner.supply.curriculum import Curriculum
from services.learner.supply.selection import Lookahead


@dataclass
class Feeder:
    """Requests the groups of one purpose when the learner is about to need them."""

    attempt: Attempt
    curriculum: Curriculum
    purpose: Purpose
    is_answered: Callable[[int], bool]
    lookahead: Lookahead = field(default_factory=Lookahead)
    _next: int = 0  # this attempt has requested every number below, or found its group
    _earlier_next: int = 0  # earlier attempts have requested every number below
    _last_step: int = 0  # the expected step of the last request
    _renewed: asyncio.Event = field(default_factory=asyncio.Event)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def next_number(self) -> int:
        """Every number below has been requested."""
        return max(self._next, self._earlier_next)

    @property
    def open_numbers(self) -> range:
        """The numbers that this attempt has requested and the learner has not inspected."""
        return range(self.lookahead.position, self._next)

    def resume(self, position: int, keys: Iterable[str]) -> None:
        """Continue at a number; earlier attempts have requested groups with these keys."""
        parts = (key.partition(":") for key in keys)
        numbers = [int(number) for purpose, _, number in parts if purpose == self.purpose]
        self._next = position
        self._earlier_next = max([position, *(number + 1 for number in numbers)])

    def admit(self, lookahead: Lookahead) -> None:
        """Replace the lookahead, and assign tasks to the numbers that it is the first to admit."""
        self.curriculum.assign(lookahead.admitted)
        self.lookahead = lookahead
        self._renewed.set()

    async def stop(self) -> int:
        """Stop requesting; return the first number that was never requested."""
        self.admit(Lookahead(position=self._next))
        async with self._asking:
            return self.next_number

    async def feed_forever(self) -> None:
        """Consumes nothing; produces requests.

        Waits for: a new lookahead, memory in the exchange. Unblocked by: `admit`, consumers.
        """
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            async with self._asking:
                while self._next < self.lookahead.admitted:
                    if not self.is_answered(self._next):
                        await self.attempt.exchange.ask(self.request(self._next))
                    self._next += 1

    def request(self, number: int) -> RolloutRequest:
        training = self.attempt.recipe.training
        rollout = self.attempt.recipe.rollout
        self._last_step = max(self._last_step, self.lookahead.expected_step(number))
        return self.attempt.request(
            self.purpose,
            number,
            step=self._last_step,
            task=self.curriculum.task(number),
            group_size=rollout.group_size,
            sampling=rollout.sampling,
            min_version=max(0, self._last_step - training.max_staleness),
        )
