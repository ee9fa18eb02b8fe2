"""What can go wrong, drawn by a seeded random number generator and done to a stack.

A disturbance has one part of the stack for itself while it lasts; several parts are disturbed at
the same time. What it breaks it mends, except that whom it kills the supervisor starts anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from protocol.messages import Requested

from tests.chaos.hash_team import PHASES
from tests.chaos.seats import (
    CLAIM_IDLE_S,
    LEARNER,
    ROLLOUT_SEATS,
    WORKER_SEATS,
    Seat,
)
from tests.chaos.stack import JOB, Stack

MEAN_PAUSE_S = 0.3  # between the beginnings of two disturbances
_MOMENT_S = (0.02, 0.5 * CLAIM_IDLE_S)
_LONG_S = (1.2 * CLAIM_IDLE_S, 2.2 * CLAIM_IDLE_S)  # longer than a worker may be silent
_ANY_S = (0.02, 1.5 * CLAIM_IDLE_S)
_CLOCK_JUMPS_S = (1, -1, 60, -60, 3600, -3600)
_LATENCY_S = 0.03
_PHASE_COMES_WITHIN_S = 20.0
_TRIES = 10  # to find one whose part is free
_MOST_WRITES = 60  # about as many as the learner makes from one checkpoint to the next


@dataclass(frozen=True)
class Disturbance:
    """One thing that goes wrong: what, with whom, how long after the one before, for how long."""

    kind: str
    seat: Seat | None
    after_s: float
    lasting_s: float
    amount: int

    @property
    def part(self) -> str:
        """What it needs for itself; only one worker of a role is ill at a time."""
        part = KINDS[self.kind].part
        if self.seat is None:
            return part
        return f"{part} {self.seat.role if part == 'health' else self.seat.name}"

    @property
    def needs_s(self) -> float:
        """How long it needs its part, about."""
        return self.lasting_s + KINDS[self.kind].recovery_s

    def __str__(self) -> str:
        whom = f" {self.seat.name}" if self.seat else ""
        return f"{self.kind}{whom}, {self.lasting_s:.2f} s, {self.amount}"


@dataclass(frozen=True)
class Kind:
    """A kind of disturbance: how often, what it needs for itself, with whom, for how long."""

    do: Callable[[Stack, Disturbance], Awaitable[None]]
    weight: float
    part: str
    seats: Sequence[Seat | None] = (None,)
    lasting_s: tuple[float, float] = (0.0, 0.0)
    amounts: Sequence[int] = (0,)
    recovery_s: float = 0.2


async def kill(stack: Stack, disturbance: Disturbance) -> None:
    life = stack.lives[_seat(disturbance)]
    life.kill()
    await life.ended.wait()


async def kill_learner(stack: Stack, disturbance: Disturbance) -> None:
    """Kill it when it comes to a phase, or where it is if it does not come to it in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PHASE_COMES_WITHIN_S):
            while not stack.switches.is_on(PHASES[disturbance.amount]):
                await asyncio.sleep(0.01)
    await kill(stack, disturbance)
    stack.kills.update(phase for phase in PHASES if stack.switches.is_on(phase))


async def freeze(stack: Stack, disturbance: Disturbance) -> None:
    life = stack.lives[_seat(disturbance)]
    life.freeze()
    try:
        await asyncio.sleep(disturbance.lasting_s)
    finally:
        life.thaw()


async def replace_frozen(stack: Stack, disturbance: Disturbance) -> None:
    """A life is taken for dead, replaced here or elsewhere, and then goes on beside the new one.

    "Here" is a process that was cut off and whose name its successor has taken.
    """
    zombie = stack.vacate(_seat(disturbance), machine=disturbance.amount)
    zombie.freeze()
    try:
        await asyncio.sleep(disturbance.lasting_s)
        zombie.thaw()
        await asyncio.sleep(disturbance.lasting_s)
    finally:
        zombie.kill()
        await zombie.ended.wait()


async def stop(stack: Stack, disturbance: Disturbance) -> None:
    life = stack.lives[_seat(disturbance)]
    life.ask_to_stop()
    await life.ended.wait()


async def kill_server(stack: Stack, disturbance: Disturbance) -> None:
    stack.server.kill()
    await asyncio.sleep(disturbance.lasting_s)
    await asyncio.to_thread(stack.server.start)


async def freeze_server(stack: Stack, disturbance: Disturbance) -> None:
    stack.server.suspend()
    try:
        await asyncio.sleep(disturbance.lasting_s)
    finally:
        stack.server.resume()


async def turn_clock(stack: Stack, disturbance: Disturbance) -> None:
    if stack.clock is not None:
        stack.clock.jump(disturbance.amount)


async def fill_memory(stack: Stack, disturbance: Disturbance) -> None:
    await asyncio.to_thread(stack.server.exhaust_memory)
    try:
        await asyncio.sleep(disturbance.lasting_s)
    finally:
        await asyncio.to_thread(stack.server.free_memory)


async def unmount(stack: Stack, disturbance: Disturbance) -> None:
    """The folder of all data is empty for a while; what is written there meanwhile is lost."""
    data, mounted = stack.folder / "data", stack.folder / "mounted"
    data.rename(mounted)
    data.mkdir()
    try:
        await asyncio.sleep(disturbance.lasting_s)
    finally:
        data.rename(stack.folder / f"below-{time.monotonic_ns()}")
        mounted.rename(data)


async def pause_job(stack: Stack, disturbance: Disturbance) -> None:
    await stack.user.request_state(JOB, Requested.PAUSE)
    await asyncio.sleep(disturbance.lasting_s)
    await stack.user.request_state(JOB, Requested.RUN)


async def lose_reply(stack: Stack, disturbance: Disturbance) -> None:
    stack.lines[_seat(disturbance)].lose_next_reply()


def _while_on(
    open_switch: Callable[[Stack, Disturbance], AbstractContextManager[None]],
) -> Callable[[Stack, Disturbance], Awaitable[None]]:
    async def do(stack: Stack, disturbance: Disturbance) -> None:
        with open_switch(stack, disturbance):
            await asyncio.sleep(disturbance.lasting_s)

    return do


def _line(name: str, *args: float) -> Callable[[Stack, Disturbance], Awaitable[None]]:
    return _while_on(lambda stack, d: getattr(stack.lines[_seat(d)], name)(*args))


def _switch(name: str) -> Callable[[Stack, Disturbance], Awaitable[None]]:
    return _while_on(lambda stack, d: stack.switches.on(name, _seat(d).name))


def _disk(error: str) -> Callable[[Stack, Disturbance], Awaitable[None]]:
    def value(d: Disturbance) -> str:
        return f"{time.monotonic_ns()} {error} {d.amount}"

    return _while_on(lambda stack, d: stack.switches.on("disk", value=value(d)))


def _seat(disturbance: Disturbance) -> Seat:
    assert disturbance.seat is not None
    return disturbance.seat


_ANYBODY = (LEARNER, *WORKER_SEATS, *WORKER_SEATS)  # who is one of many is hit more often
_MACHINES = (0, 1)
_WRITES = range(_MOST_WRITES)
_CALL_TAKES_MS = (5, 20, 50)
KINDS = {
    "kill worker": Kind(kill, 14, "process", WORKER_SEATS),
    "kill learner": Kind(
        kill_learner, 3, "process", (LEARNER,), amounts=range(len(PHASES)), recovery_s=3.0
    ),
    "freeze": Kind(freeze, 6, "process", _ANYBODY, _MOMENT_S),
    "freeze long": Kind(freeze, 8, "process", _ANYBODY, _LONG_S),
    "replace frozen": Kind(
        replace_frozen, 8, "process", _ANYBODY, _LONG_S, amounts=_MACHINES, recovery_s=1.0
    ),
    "stop": Kind(stop, 8, "process", _ANYBODY, recovery_s=0.8),
    "raises": Kind(_switch("raises"), 5, "health", WORKER_SEATS, _ANY_S),
    "crashes": Kind(_switch("crashes"), 5, "health", WORKER_SEATS, _ANY_S),
    "slow load": Kind(_switch("slow_load"), 4, "load", ROLLOUT_SEATS, _LONG_S),
    "cut line": Kind(_line("cut"), 6, "line", _ANYBODY, _ANY_S),
    "black hole": Kind(_line("black_hole"), 6, "line", _ANYBODY, _ANY_S),
    "slow line": Kind(_line("slow", _LATENCY_S), 4, "line", _ANYBODY, _ANY_S),
    "lose reply": Kind(lose_reply, 8, "reply", _ANYBODY),
    "kill server": Kind(kill_server, 2, "server", lasting_s=_MOMENT_S),
    "freeze server": Kind(freeze_server, 1.5, "server", lasting_s=_MOMENT_S),
    "freeze server long": Kind(freeze_server, 1.5, "server", lasting_s=_LONG_S),
    "fill memory": Kind(fill_memory, 1, "server", lasting_s=_MOMENT_S),
    "turn clock": Kind(turn_clock, 5, "clock", amounts=_CLOCK_JUMPS_S),
    "disk full": Kind(_disk("ENOSPC"), 1.5, "disk", lasting_s=_ANY_S, amounts=_WRITES),
    "disk broken": Kind(_disk("EIO"), 1.5, "disk", lasting_s=_ANY_S, amounts=_WRITES),
    "disk slow": Kind(_disk("SLOW"), 1.5, "disk", lasting_s=_LONG_S, amounts=_CALL_TAKES_MS),
    "unmount": Kind(unmount, 1.5, "disk", lasting_s=_ANY_S),
    "pause job": Kind(pause_job, 2, "user", lasting_s=_MOMENT_S),
}


def draw(seed: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Disturbance]:
    """So many disturbances; the same seed draws the same ones. None waits long for its part."""
    chance = random.Random(seed)
    weights = [KINDS[kind].weight for kind in kinds]
    drawn: list[Disturbance] = []
    now_s = last_s = 0.0
    free_at_s = defaultdict[str, float](float)
    while len(drawn) < count:
        now_s += chance.uniform(0, 2 * MEAN_PAUSE_S)
        for kind in chance.choices(kinds, weights, k=_TRIES):
            disturbance = _draw_one(kind, now_s - last_s, chance)
            if free_at_s[disturbance.part] <= now_s:
                free_at_s[disturbance.part] = now_s + disturbance.needs_s
                drawn.append(disturbance)
                last_s = now_s
                break
    return drawn


def _draw_one(name: str, after_s: float, chance: random.Random) -> Disturbance:
    kind = KINDS[name]
    return Disturbance(
        kind=name,
        seat=chance.choice(kind.seats),
        after_s=after_s,
        lasting_s=chance.uniform(*kind.lasting_s),
        amount=chance.choice(kind.amounts),
    )


@dataclass
class Misfortune:
    """Does disturbances to a stack, and notes what it did when."""

    stack: Stack
    journal: list[str]
    began: float = field(default_factory=time.monotonic)
    _parts: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )

    async def strike(self, disturbances: Sequence[Disturbance]) -> None:
        """Do all of them, each as soon as it is due and its part of the stack is free."""
        async with asyncio.TaskGroup() as tasks:
            for disturbance in disturbances:
                await asyncio.sleep(disturbance.after_s)
                tasks.create_task(self._do(disturbance))

    async def _do(self, disturbance: Disturbance) -> None:
        async with self._parts[disturbance.part]:
            self._note("begins", disturbance)
            await KINDS[disturbance.kind].do(self.stack, disturbance)
            self._note("ends", disturbance)

    def _note(self, what: str, disturbance: Disturbance) -> None:
        self.journal.append(f"{time.monotonic() - self.began:7.2f} {what:6} {disturbance}")
