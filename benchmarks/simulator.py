"""A simulation of one job: rollouts that sample, a learner that trains, and who waits for whom.

It keeps Weir's rules, that of claims by the work loop's own function. A step trains on groups in
the order of their numbers. Groups are asked for when their step is at most ``max_staleness`` ahead.
An engine samples all its responses at once, the more the slower each; a new version stops it for a
moment. Prompts and grading take no time.
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
    """Seconds, as they were measured or are expected of a machine."""

    token: float  # of an engine, until each of its responses has one more token, ...
    response: float  # ... and so much longer for each of these responses
    at_once: int  # responses that an engine samples
    trained_token: float  # of the learner
    step: float  # of the learner, however many tokens
    pause: float = 0.0  # of an engine, to load a version

    def period(self, responses: int) -> float:
        """Seconds in which each of so many responses becomes one token longer."""
        return self.token + self.response * responses

    @property
    def fastest(self) -> float:
        """Tokens a second of a full engine."""
        return self.at_once / self.period(self.at_once)


@dataclass(frozen=True)
class Outcome:
    """What became of a job, once it had got going."""

    step_seconds: float
    tokens_per_second: float
    learner_idle: float  # share of its time
    rollouts_idle: float  # share of what they could have sampled, always full


@dataclass
class _Engine:
    costs: Costs
    clock: float = 0.0
    ticks: float = 0.0  # tokens that each response has got so far
    running: list[tuple[float, int]] = field(default_factory=list)  # when it ends, in ticks; group

    @property
    def num_groups(self) -> int:
        """How many groups have responses that are not complete."""
        return len({number for _, number in self.running})

    @property
    def next_end(self) -> float:
        if not self.running:
            return math.inf
        left = max(0.0, self.running[0][0] - self.ticks)
        return self.clock + left * self.costs.period(len(self.running))

    def advance(self, now: float) -> int | None:
        """Go on until ``now``, not after `next_end`; returns the group of a response that ends."""
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
    """Let a job make all the steps for which there are groups.

    ``groups`` are the tokens of each response of each group; a step is ``groups_per_step`` of them
    in order. The first ``warm_up`` steps are left out.
    """
    engines = [_Engine(costs) for _ in range(num_rollouts)]
    missing = [len(group) for group in groups]  # responses to come
    asked: deque[int] = deque()
    step = admitted = trained = 0
    now = waited = 0.0
    learned_at: float | None = None  # None: the learner waits
    began, waited_before, trained_before = 0.0, 0.0, 0
    while step < len(groups) // groups_per_step:
        limit = min(len(groups), (step + 1 + max_staleness) * groups_per_step)
        asked.extend(range(admitted, limit))
        admitted = limit
        _claim(asked, groups, engines, costs.at_once)
        of_step = slice(step * groups_per_step, (step + 1) * groups_per_step)
        tokens = sum(int(group.sum()) for group in groups[of_step])
        if learned_at is None and not any(missing[of_step]):
            learned_at = now + costs.step + tokens * costs.trained_token
        then = min(math.inf if learned_at is None else learned_at, *(e.next_end for e in engines))
        waited += then - now if learned_at is None else 0.0
        now = then
        for engine in engines:
            if (number := engine.advance(now)) is not None:
                missing[number] -= 1
        if learned_at is not None and learned_at <= now:
            learned_at, step, trained = None, step + 1, trained + tokens
            for engine in engines:
                engine.clock += costs.pause
            if step == warm_up:
                began, waited_before, trained_before = now, waited, trained
    speed = (trained - trained_before) / (now - began)
    return Outcome(
        step_seconds=(now - began) / (step - warm_up),
        tokens_per_second=speed,
        learner_idle=(waited - waited_before) / (now - began),
        rollouts_idle=1 - speed / costs.fastest / num_rollouts,
    )


def _claim(
    asked: deque[int], groups: Sequence[np.ndarray], engines: Sequence[_Engine], at_once: int
) -> None:
    """Each engine in turn takes its share as far as it has room, then one after the other."""
    for engine in engines:
        claimed = sum(each.num_groups for each in engines)
        share = fair_share(len(asked), claimed, len(engines), engine.num_groups)
        while share > 0 and _take_next(asked, groups, engine, at_once):
            share -= 1
    while any([_take_next(asked, groups, engine, at_once) for engine in engines]):
        pass


def _take_next(
    asked: deque[int], groups: Sequence[np.ndarray], engine: _Engine, at_once: int
) -> bool:
    """Whether there is room in the engine for the next group, which begins."""
    if not asked or (engine.running and len(engine.running) + len(groups[asked[0]]) > at_once):
        return False
    number = asked.popleft()
    for length in groups[number]:
        heapq.heappush(engine.running, (engine.ticks + int(length), number))
    return True


def check() -> None:
    """Jobs that can be computed by hand: a group takes 10 s of sampling and 5 s of training."""
    costs = Costs(token=1.0, response=0.0, at_once=4, trained_token=0.25, step=0.0)
    for max_staleness, seconds in ((0, 15), (1, 15 / 2), (2, 5), (3, 5)):
        made = simulate(
            costs,
            [np.array([10, 10])] * 44,
            groups_per_step=1,
            max_staleness=max_staleness,
            num_rollouts=1,
            warm_up=4,
        )
        assert math.isclose(made.step_seconds, seconds)
        assert math.isclose(made.tokens_per_second, 20 / seconds)
        assert math.isclose(made.learner_idle, 1 - 5 / seconds, abs_tol=1e-9)
