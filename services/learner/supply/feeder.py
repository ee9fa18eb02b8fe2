"""The feeder: which task is asked for next, and when.

A request's number decides its task and its seed, so a new attempt asks for the same group. The
`Lookahead` says how far ahead may be asked, and the step that a number is expected to serve; it is
renewed whenever the learner has looked at a group. The answer must come from weights at most
``max_staleness`` behind the expected step: ``min_version`` is that step less ``max_staleness``.

Nothing waits for a version that waits for it:

1. When a request goes out in step s, its expected step is at most s + max_staleness, so its
   ``min_version`` is at most s. The policy of step s needs no group that is asked for in step s or
   later: it is published when step s begins.
2. The learner looks at the group in step s or later, since it looks at groups in the order of their
   numbers and had not come to this one in step s. So whatever it waits for can be answered by
   weights that are published by then, however wrong the expectation was.
3. A new attempt begins at an earlier step and finds requests of the last one. Those went out in
   some step s, which the last attempt reached by groups that are in the log. The new attempt
   decides the same about these (`Selection` is pure), so it reaches step s, and publishes, before
   it waits for anything.

The expected step, and with it ``min_version``, never falls from one number to the next. Where a
step looks at fewer groups than expected, a later step finds the rest, perhaps too old: it drops
those as surplus, and none older than ``max_staleness`` is ever trained on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from protocol.messages import RolloutRequest, Task
from protocol.recipe import Purpose

from services.learner.attempt import Attempt
from services.learner.supply.selection import Lookahead


@lru_cache(maxsize=4)
def _order_of_epoch(num_tasks: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(num_tasks))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def task_index(number: int, num_tasks: int, seed: int) -> int:
    """Which task the request with this number asks for: each once an epoch, in a new order."""
    epoch, place = divmod(number, num_tasks)
    return _order_of_epoch(num_tasks, seed, epoch)[place]


@dataclass
class Feeder:
    """Asks for the groups of one purpose as the learner comes to need them."""

    attempt: Attempt
    tasks: Sequence[Task]
    purpose: Purpose
    is_answered: Callable[[int], bool]
    lookahead: Lookahead = field(default_factory=Lookahead)
    _next: int = 0  # this attempt has seen to every number below
    _asked_before: int = 0  # earlier attempts have asked for every number below
    _last_step: int = 0  # that a request was expected to serve
    _renewed: asyncio.Event = field(default_factory=asyncio.Event)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def asked(self) -> int:
        """Every number below has been asked for."""
        return max(self._next, self._asked_before)

    @property
    def open_numbers(self) -> range:
        """The numbers that this attempt has asked for and the learner has not looked at."""
        return range(self.lookahead.position, self._next)

    def resume(self, position: int, keys: Iterable[str]) -> None:
        """Go on from a number; earlier attempts have asked for groups with these keys."""
        parts = (key.partition(":") for key in keys)
        numbers = [int(number) for purpose, _, number in parts if purpose == self.purpose]
        self._next = position
        self._asked_before = max([position, *(number + 1 for number in numbers)])

    def admit(self, lookahead: Lookahead) -> None:
        """Ask from now on as far ahead as this lookahead says."""
        self.lookahead = lookahead
        self._renewed.set()

    async def stop(self) -> int:
        """Ask for nothing more; returns the first number that was never asked for."""
        self.admit(Lookahead(position=self._next))
        async with self._asking:
            return self.asked

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
        training, rollout = self.attempt.recipe.training, self.attempt.recipe.rollout
        self._last_step = max(self._last_step, self.lookahead.step_of(number))
        return self.attempt.request(
            self.purpose,
            number,
            step=self._last_step,
            task=self.tasks[task_index(number, len(self.tasks), training.seed)],
            group_size=rollout.group_size,
            sampling=rollout.sampling,
            min_version=max(0, self._last_step - training.max_staleness),
        )
