"""Faults: a deck that is shuffled by a seed and planted into a stack.

A fault occupies one part of the stack while it lasts; several parts fail at the same time. A fault
repairs its damage itself, but the supervisor restarts killed processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from signal import SIGCONT, SIGSTOP, SIGTERM

from protocol.messages import Requested

from tests.chaos.hash_team import PHASES
from tests.chaos.job import JOB
from tests.chaos.places import CLAIM_IDLE_S, LEARNER, REPLICAS, ROLLOUTS, WORKERS, Replica
from tests.chaos.stack import Stack

MEAN_PAUSE_S = 0.3  # between the beginnings of two faults
_MOMENT_S = (0.02, 0.5 * CLAIM_IDLE_S)
_LONG_S = (1.2 * CLAIM_IDLE_S, 2.2 * CLAIM_IDLE_S)  # longer than a worker may be silent
_ANY_S = (0.02, 1.5 * CLAIM_IDLE_S)
_LATENCY_S = 0.03
_PHASE_COMES_WITHIN_S = 10.0
_TAKES_OVER_WITHIN_S = 30.0


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: what, with whom, how long after the one before, for how long."""

    kind: str
    replica: Replica
    after_s: float
    lasting_s: float
    amount: int

    @property
    def part(self) -> str:
        """The part of the stack that it occupies; of a role only one worker is unhealthy."""
        part = KINDS[self.kind].part
        if part in {"process", "load", "line", "reply"}:
            return f"{part} {self.replica.name}"
        return f"{part} {self.replica.role}" if part == "health" else part

    def __str__(self) -> str:
        return f"{self.kind} {self.replica.name}, {self.lasting_s:.2f} s, {self.amount}"


Do = Callable[[Stack, Fault], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its count in a deck, its action, and the parameters drawn for it."""

    count: int
    do: Do
    part: str
    replicas: Sequence[Replica] = (LEARNER,)
    lasting_s: tuple[float, float] = (0.0, 0.0)
    amounts: Sequence[int] = (0,)


async def kill(stack: Stack, fault: Fault) -> None:
    await stack.lives[fault.replica].kill()


async def until(condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """Wait no longer than that for what may never come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not await condition():
                await asyncio.sleep(0.02)


async def kill_learner(stack: Stack, fault: Fault) -> None:
    """Kill it when it comes to a phase, or where it is if it does not come to it in time."""

    async def is_in_phase() -> bool:
        return stack.switches.is_enabled(PHASES[fault.amount])

    async def has_saved() -> bool:
        return stack.checkpoints != before

    await until(is_in_phase, _PHASE_COMES_WITHIN_S)
    await kill(stack, fault)
    stack.kills.update(phase for phase in PHASES if stack.switches.is_enabled(phase))
    before = stack.checkpoints
    await until(has_saved, _TAKES_OVER_WITHIN_S)  # or it would learn nothing until the next kill


async def freeze(stack: Stack, fault: Fault) -> None:
    life = stack.lives[fault.replica]
    life.send(SIGSTOP)
    await asyncio.sleep(fault.lasting_s)
    life.send(SIGCONT)


async def replace(stack: Stack, fault: Fault) -> None:
    """A life is taken for dead, replaced here or elsewhere, and then goes on beside the new one.

    "Here" is a process that was cut off and whose name its successor has taken.
    """
    before = await stack.record()

    async def is_replaced() -> bool:
        return (await stack.record()).attempt != before.attempt

    zombie = stack.vacate(fault.replica, machine=fault.amount)
    zombie.send(SIGSTOP)
    await asyncio.sleep(fault.lasting_s)
    if fault.replica is LEARNER:
        await until(is_replaced, _TAKES_OVER_WITHIN_S)
    zombie.send(SIGCONT)
    await asyncio.sleep(fault.lasting_s)
    await zombie.kill()


async def stop(stack: Stack, fault: Fault) -> None:
    stack.lives[fault.replica].send(SIGTERM)
    await stack.lives[fault.replica].ended.wait()


async def kill_server(stack: Stack, fault: Fault) -> None:
    stack.server.kill()
    await asyncio.sleep(fault.lasting_s)
    await asyncio.to_thread(stack.server.start)


async def freeze_server(stack: Stack, fault: Fault) -> None:
    stack.server.suspend()
    await asyncio.sleep(fault.lasting_s)
    stack.server.resume()


async def turn_clock(stack: Stack, fault: Fault) -> None:
    stack.clock.turn(fault.amount)


async def fill_memory(stack: Stack, fault: Fault) -> None:
    await asyncio.to_thread(stack.server.exhaust_memory)
    await asyncio.sleep(fault.lasting_s)
    await asyncio.to_thread(stack.server.free_memory)


async def unmount(stack: Stack, fault: Fault) -> None:
    """Empty the data folder for a while; files written there meanwhile are lost."""
    data = stack.folder / "data"
    mounted = stack.folder / "mounted"
    data.rename(mounted)
    data.mkdir()
    await asyncio.sleep(fault.lasting_s)
    data.rename(stack.folder / f"below-{time.monotonic_ns()}")
    mounted.rename(data)


async def pause_job(stack: Stack, fault: Fault) -> None:
    await stack.user.request_state(JOB, Requested.PAUSE)
    await asyncio.sleep(fault.lasting_s)
    await stack.user.request_state(JOB, Requested.RUN)


async def lose_reply(stack: Stack, fault: Fault) -> None:
    stack.lines[fault.replica].lose_next_reply()


def lasting(begin: Callable[[Stack, Fault], AbstractContextManager[None]]) -> Do:
    async def do(stack: Stack, fault: Fault) -> None:
        with begin(stack, fault):
            await asyncio.sleep(fault.lasting_s)

    return do


def line(name: str, *args: float) -> Do:
    return lasting(lambda stack, fault: getattr(stack.lines[fault.replica], name)(*args))


def ill(name: str) -> Do:
    return lasting(lambda stack, fault: stack.switches.on(f"{name} {fault.replica.name}"))


def disk(error: str) -> Do:
    def begin(stack: Stack, fault: Fault) -> AbstractContextManager[None]:
        return stack.switches.on("disk", f"{time.monotonic_ns()} {error} {fault.amount}")

    return lasting(begin)


_JUMPS_S = (1, -1, 60, -60, 3600, -3600)
_WRITES = range(60)  # about as many as the learner makes from one checkpoint to the next
_CALL_TAKES_MS = (5, 20, 50)
_MACHINES = (0, 1)
_PHASES = range(len(PHASES))
KINDS = {  # fifty in a deck
    "kill": Kind(6, kill, "process", WORKERS),
    "kill learner": Kind(3, kill_learner, "process", amounts=_PHASES),
    "freeze": Kind(2, freeze, "process", REPLICAS, _MOMENT_S),
    "freeze long": Kind(3, freeze, "process", REPLICAS, _LONG_S),
    "replace": Kind(2, replace, "process", WORKERS, _LONG_S, _MACHINES),
    "replace learner": Kind(2, replace, "process", (LEARNER,), _LONG_S, _MACHINES),
    "stop": Kind(3, stop, "process", REPLICAS),
    "raises": Kind(2, ill("raises"), "health", WORKERS, _ANY_S),
    "crashes": Kind(2, ill("crashes"), "health", WORKERS, _ANY_S),
    "slow load": Kind(2, ill("slow load"), "load", ROLLOUTS, _LONG_S),
    "cut line": Kind(3, line("cut"), "line", REPLICAS, _ANY_S),
    "black hole": Kind(3, line("black_hole"), "line", REPLICAS, _ANY_S),
    "slow line": Kind(2, line("slow", _LATENCY_S), "line", REPLICAS, _ANY_S),
    "lose reply": Kind(3, lose_reply, "reply", REPLICAS),
    "kill server": Kind(1, kill_server, "server", lasting_s=_MOMENT_S),
    "freeze server": Kind(1, freeze_server, "server", lasting_s=_MOMENT_S),
    "freeze server long": Kind(1, freeze_server, "server", lasting_s=_LONG_S),
    "fill memory": Kind(1, fill_memory, "server", lasting_s=_MOMENT_S),
    "turn clock": Kind(3, turn_clock, "clock", amounts=_JUMPS_S),
    "disk full": Kind(
        1,
        disk("ENOSPC"),
        "disk",
        lasting_s=_ANY_S,
        amounts=_WRITES,
    ),
    "disk broken": Kind(
        1,
        disk("EIO"),
        "disk",
        lasting_s=_ANY_S,
        amounts=_WRITES,
    ),
    "disk slow": Kind(
        1,
        disk("SLOW"),
        "disk",
        lasting_s=_LONG_S,
        amounts=_CALL_TAKES_MS,
    ),
    "unmount": Kind(1, unmount, "disk", lasting_s=_ANY_S),
    "pause job": Kind(1, pause_job, "user", lasting_s=_MOMENT_S),
}


def draw(seed: int, count: int, kinds: Sequence[str]) -> list[Fault]:
    """So many faults, deck after deck; the same seed draws the same ones."""
    chance = random.Random(seed)
    faults = list[Fault]()
    while len(faults) < count:
        deck = [(name, turn) for name in kinds for turn in range(KINDS[name].count)]
        chance.shuffle(deck)
        faults += [_draw_one(name, turn, chance) for name, turn in deck]
    return faults[:count]


def _draw_one(name: str, turn: int, chance: random.Random) -> Fault:
    kind = KINDS[name]
    amounts = kind.amounts[turn:][:1] if kind.amounts == _PHASES else kind.amounts
    return Fault(
        kind=name,
        replica=chance.choice(kind.replicas),
        after_s=chance.uniform(0, 2 * MEAN_PAUSE_S),
        lasting_s=chance.uniform(*kind.lasting_s),
        amount=chance.choice(amounts),
    )


async def strike(
    stack: Stack, faults: Sequence[Fault], ending: asyncio.Future[None], journal: list[str]
) -> None:
    """Do all of them until the job ends, each as soon as it is due and its part is free."""
    began = time.monotonic()
    parts = defaultdict[str, asyncio.Lock](asyncio.Lock)

    def note(moment: str, fault: Fault) -> None:
        journal.append(f"{time.monotonic() - began:7.2f} {moment:6} {fault}")

    async def do(fault: Fault) -> None:
        async with parts[fault.part]:
            if not ending.done():
                note("begins", fault)
                await KINDS[fault.kind].do(stack, fault)
                note("ends", fault)

    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            await asyncio.sleep(fault.after_s)
            tasks.create_task(do(fault))
