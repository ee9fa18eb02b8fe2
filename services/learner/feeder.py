"""The feeder: which task is asked for next, and when.

A request's number decides its task, its seed and its step, so a new attempt asks for exactly the
same. It is issued only when its step is at most ``max_staleness`` ahead of the policy, and answered
only by weights at most ``max_staleness`` behind its step: fresh by construction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from protocol.exchange import Exchange
from protocol.messages import RolloutRequest, Task
from protocol.recipe import Purpose, Recipe


@lru_cache(maxsize=4)
def _order_of_epoch(num_tasks: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(num_tasks))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def task_index(number: int, num_tasks: int, seed: int) -> int:
    """Which task the request with this number asks for: each once an epoch, in a new order."""
    epoch, place = divmod(number, num_tasks)
    return _order_of_epoch(num_tasks, seed, epoch)[place]


def numbers_of(step: int, groups_per_step: int) -> range:
    """The numbers of the training requests that belong to a step."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


class Feeder:
    """Asks for training groups as the policy advances."""

    def __init__(
        self,
        exchange: Exchange,
        job_id: str,
        attempt: int,
        recipe: Recipe,
        tasks: Sequence[Task],
        is_answered: Callable[[int], bool],
    ) -> None:
        self.exchange = exchange
        self.job_id = job_id
        self.attempt = attempt
        self.recipe = recipe
        self.tasks = tasks
        self.is_answered = is_answered
        self.asked = 0  # every number below has been asked for
        self.admitted = 0  # every number below may be asked for
        self._advanced = asyncio.Event()

    def admit(self, step: int) -> None:
        """The policy has reached a step; requests may go out ``max_staleness`` steps ahead."""
        training = self.recipe.training
        last_step = min(training.steps, step + training.max_staleness + 1)
        self.admitted = last_step * training.groups_per_step
        self._advanced.set()

    async def feed_forever(self) -> None:
        """Consumes nothing; produces training requests.

        Waits for: the policy to advance, memory in the exchange. Unblocked by: `admit`, consumers.
        """
        while True:
            while self.asked < self.admitted:
                if not self.is_answered(self.asked):
                    await self.exchange.ask(self.request(self.asked))
                self.asked += 1
            self._advanced.clear()
            await self._advanced.wait()

    def request(self, number: int) -> RolloutRequest:
        """The training request with this number."""
        training, rollout = self.recipe.training, self.recipe.rollout
        step = number // training.groups_per_step
        return RolloutRequest(
            job_id=self.job_id,
            attempt=self.attempt,
            number=number,
            purpose=Purpose.TRAIN,
            step=step,
            task=self.tasks[task_index(number, len(self.tasks), training.seed)],
            group_size=rollout.group_size,
            sampling=rollout.sampling,
            prompt_template=self.recipe.model.prompt_template,
            seed=request_seed(training.seed, Purpose.TRAIN, number),
            min_version=max(0, step - training.max_staleness),
        )


def request_seed(seed: int, purpose: Purpose, number: int) -> int:
    """The sampling seed of a request, different for every job seed, purpose and number."""
    return random.Random(f"{seed}:{purpose}:{number}").getrandbits(31)
