"""Simulate one job: rollouts that sample, a learner that trains, and the waits between them.

The rules are Weir's, and `fair_share` is the consumers' own function. A step trains on groups in
the order of their numbers. Groups are requested when their step is at most ``max_staleness`` ahead.
An engine samples all its responses at once, and slows down with their number; a new version pauses
it. Prompts and grading take no time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.chassis.consumer import fair_share


@dataclass(frozen=True)
class Costs:
    """Seconds, measured or expected."""

    token: float  # of an engine for one token of every response, ...
    response: float  # ... plus this for each response
    places: int  # responses that an engine samples at once
    trained_token: float
    step: float  # of the learner, in addition to tokens
    pause: float = 0.0  # of an engine that loads a version

    def period(self, responses: int) -> float:
        """Return the seconds until each response has one more token."""
        return self.token + self.response * responses

    @property
    def max_rate(self) -> float:
        """Tokens a second of a full engine."""
        return self.places / self.period(self.places)


@dataclass(frozen=True)
class Outcome:
    """Rates of a job after its warm-up."""

    step_seconds: float
    tokens_per_second: float
    learner_idle: float  # share of its time
    rollouts_idle: float  # share of the capacity of full engines


@dataclass
class _Engine:
    costs: Costs
    clock: float = 0.0
    ticks: float = 0.0  # tokens that a response sampled since the beginning would have
    running: list[tuple[float, int]] = field(default_factory=list)  # last tick, group

    @property
    def num_groups(self) -> int:
        """The number of groups with incomplete responses."""
        return len({number for _, number in self.running})

    @property
    def next_end(self) -> float:
        if not self.running:
            return math.inf
        remaining = max(0.0, self.running[0][0] - self.ticks)
        return self.clock + remaining * self.costs.period(len(self.running))

    def advance(self, now: float) -> int | None:
        """Sample until ``now``, at most `next_end`; return the group of a response that ends."""
        ends = self.next_end <= now
        if now > self.clock:
            if self.running:
                self.ticks += (now - self.clock) / self.costs.period(len(self.running))
            self.clock = now
        if not ends:
            return None
        ticks, number = heapq.heappop(self.running)
        self.ticks = max(self.ticks, ticks)
        return number


def simulate(
    costs: Costs,
    groups: Sequence[np.ndarray],
    *,
    groups_per_step: int,
    max_staleness: int,
    num_rollouts: int,
    warm_up: int,
) -> Outcome:
    """Simulate all steps for which there are groups.

    ``groups`` are the tokens of each response of each group; a step is ``groups_per_step`` of them
    in order. The first ``warm_up`` steps are not measured.
    """
    engines = [_Engine(costs) for _ in range(num_rollouts)]
    missing = [len(group) for group in groups]  # incomplete responses
    queue: deque[int] = deque()
    step = requested = trained = 0
    now = waited = 0.0
    update_ends = math.inf  # inf: the learner waits
    measured_from = (0.0, 0.0, 0)
    while step < len(groups) // groups_per_step:
        limit = min(len(groups), (step + 1 + max_staleness) * groups_per_step)
        queue.extend(range(requested, limit))
        requested = limit
        _claim(queue, groups, engines, costs.places)
        step_groups = slice(step * groups_per_step, (step + 1) * groups_per_step)
        tokens = sum(int(group.sum()) for group in groups[step_groups])
        if update_ends == math.inf and not any(missing[step_groups]):
            update_ends = now + costs.step + tokens * costs.trained_token
        then = min(update_ends, *(engine.next_end for engine in engines))
        if update_ends == math.inf:
            waited += then - now
        now = then
        _advance(engines, now, missing)
        if update_ends <= now:
            update_ends = math.inf
            step += 1
            trained += tokens
            for engine in engines:
                engine.clock += costs.pause
            if step == warm_up:
                measured_from = (now, waited, trained)
    start, waited_before, trained_before = measured_from
    seconds = now - start
    rate = (trained - trained_before) / seconds
    idle = (waited - waited_before) / seconds
    capacity = costs.max_rate * num_rollouts
    return Outcome(seconds / (step - warm_up), rate, idle, 1 - rate / capacity)


def _advance(engines: Sequence[_Engine], now: float, missing: list[int]) -> None:
    for engine in engines:
        number = engine.advance(now)
        if number is not None:
            missing[number] -= 1


def _claim(
    queue: deque[int], groups: Sequence[np.ndarray], engines: Sequence[_Engine], places: int
) -> None:
    """Each engine in turn takes its share as far as it has room, then one group after the other."""
    for engine in engines:
        claimed = sum(other.num_groups for other in engines)
        share = fair_share(len(queue), claimed, len(engines), engine.num_groups)
        while share > 0 and _take_next(queue, groups, engine, places):
            share -= 1
    while any([_take_next(queue, groups, engine, places) for engine in engines]):
        pass


def _take_next(
    queue: deque[int], groups: Sequence[np.ndarray], engine: _Engine, places: int
) -> bool:
    """Begin the next group if the engine has room for it."""
    if not queue or (engine.running and len(engine.running) + len(groups[queue[0]]) > places):
        return False
    number = queue.popleft()
    for length in groups[number]:
        heapq.heappush(engine.running, (engine.ticks + int(length), number))
    return True


def check() -> None:
    """Compare with jobs computed by hand: 10 s of sampling and 5 s of training for a group."""
    costs = Costs(token=1.0, response=0.0, places=4, trained_token=0.25, step=0.0)
    for max_staleness, seconds in ((0, 15), (1, 15 / 2), (2, 5), (3, 5)):
        outcome = simulate(
            costs,
            [np.array([10, 10])] * 44,
            groups_per_step=1,
            max_staleness=max_staleness,
            num_rollouts=1,
            warm_up=4,
        )
        assert math.isclose(outcome.step_seconds, seconds)
        assert math.isclose(outcome.tokens_per_second, 20 / seconds)
        assert math.isclose(outcome.learner_idle, 1 - 5 / seconds, abs_tol=1e-9)
