"""The cost of the active job: processor time and GPUs of all services, while it runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from protocol.exchange import Exchange

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
    """Adds what this process and its descendants use to the cost of the active job."""

    exchange: Exchange
    service: str
    family: Sequence[int] = ()
    find_at: float = 0.0
    reported_at: float = field(default_factory=time.monotonic)
    reported: float = 0.0  # core-seconds

    async def report(self, held_gpus: int = 0) -> None:
        """Report the use since the last report; without an active job it is no job's."""
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
        await self.exchange.add_cost(self.service, used - self.reported, gpu_seconds)
        self.reported = used
        self.reported_at = now


async def report_server_forever(exchange: Exchange, every_s: float) -> None:
    """Consumes the server's processor time; produces its part of the active job's cost.

    Waits for: the next report. Unblocked by: time.
    """
    reported = await exchange.server_core_seconds()
    while True:
        await asyncio.sleep(every_s)
        used = await exchange.server_core_seconds()
        # A server that has started again begins at 0.
        await exchange.add_cost("redis", max(0.0, used - reported))
        reported = used


def _read_stat(process_id: int | str) -> list[str]:
    """Return the fields of a process after its name, which may contain spaces."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
