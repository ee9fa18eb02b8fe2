"""The cost of a job: processor time and GPUs of all services, while it has an attempt."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from protocol.bill import ACTIVE
from protocol.exchange import Exchange

from services.chassis.metrics import PHASES

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FIND_FAMILY_EVERY_S = 10.0


def core_seconds(process_id: int) -> float:
    """Return the core-seconds of a process and its ended children; 0 if it has ended itself."""
    with suppress(OSError):
        return sum(map(int, _read_stat(process_id)[11:15])) / _TICKS_PER_SECOND
    return 0.0


def find_family(root: int) -> list[int]:
    """Return the ids of a process and of its living descendants; this reads all of /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            children[int(_read_stat(name)[1])].append(int(name))
    family = [root]
    for process_id in family:
        family += children[process_id]
    return family


@dataclass
class CostReporter:
    """Adds what this process and its descendants use to the cost of the job."""

    exchange: Exchange
    service: str
    family: Sequence[int] = ()
    find_at: float = 0.0
    reported_at: float = field(default_factory=time.monotonic)
    reported: float = 0.0  # core-seconds
    phases: Mapping[str, float] = field(default_factory=PHASES.seconds)

    async def report(self, held_gpus: int = 0) -> None:
        """Report the use since the last report; without an attempt it is no job's.

        It is divided between the phases of the process: GPU-seconds if it holds GPUs, else
        core-seconds.
        """
        now = time.monotonic()
        if now > self.find_at:
            # The other ranks of a learner are children of torchrun, like this process.
            has_ranks = "TORCHELASTIC_RUN_ID" in os.environ
            root = os.getppid() if has_ranks else os.getpid()
            self.family = await asyncio.to_thread(find_family, root)
            self.find_at = now + _FIND_FAMILY_EVERY_S
        # A descendant that others waited for takes its time along.
        used = max(self.reported, sum(map(core_seconds, self.family)))
        gpu_seconds = held_gpus * (now - self.reported_at)
        phases = PHASES.seconds()
        await self.exchange.add_cost(
            {
                f"core_seconds:{self.service}": used - self.reported,
                f"gpu_seconds:{self.service}": gpu_seconds,
                **self._divide(gpu_seconds or used - self.reported, phases),
            }
        )
        self.phases = phases
        self.reported = used
        self.reported_at = now

    def _divide(self, seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
        spent = {name: total - self.phases.get(name, 0.0) for name, total in phases.items() if name}
        scale = seconds / (sum(spent.values()) or 1.0)
        return {f"phase_seconds:{self.service}/{n}": scale * part for n, part in spent.items()}


async def report_attempt_forever(exchange: Exchange, every_s: float) -> None:
    """Consumes the time of the attempt and of the server; produces their part of the cost.

    Waits for: the next report. Unblocked by: time.
    """
    reported = await exchange.server_core_seconds()
    reported_at = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        used = await exchange.server_core_seconds()
        now = time.monotonic()
        # A server that has started again begins at 0.
        await exchange.add_cost({"core_seconds:redis": used - reported, ACTIVE: now - reported_at})
        reported = used
        reported_at = now


@dataclass
class ParentReporter:
    """Adds the own time of this process's parent, the supervisor, to the cost of the job."""

    exchange: Exchange
    parent: int = field(default_factory=os.getppid)
    reported: float | None = None  # core-seconds; its time before this process is no job's

    async def report(self) -> None:
        with suppress(OSError):
            used = sum(map(int, _read_stat(self.parent)[11:13])) / _TICKS_PER_SECOND
            if self.reported is not None:
                await self.exchange.add_cost({"core_seconds:supervisor": used - self.reported})
            self.reported = used


def _read_stat(process_id: int | str) -> list[str]:
    """Return the fields of a process after its name, which may contain spaces."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
