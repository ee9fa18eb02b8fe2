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
    """Adds what this process and its descendants use to the cost of the job with an attempt."""

    exchange: Exchange
    service: str
    supervisor: int | None = None  # the id of a process whose own time is added as well
    job: str | None = None  # with an attempt at the last report
    family: Sequence[int] = ()
    find_at: float = 0.0
    reported_at: float = field(default_factory=time.monotonic)
    reported: Mapping[str, float] = field(default_factory=dict)  # core-seconds by service
    phases: Mapping[str, float] = field(default_factory=PHASES.seconds)

    def __post_init__(self) -> None:
        # The supervisor's time before this process is no job's, or has been reported.
        self.reported = self._measure()

    async def report(self, held_gpus: int = 0) -> None:
        """Report the use since the last report; without an attempt then and now it is no job's.

        It is divided between the phases of the process: GPU-seconds if it holds GPUs, else
        core-seconds.
        """
        now = time.monotonic()
        job = await self.exchange.billed_job()
        if now > self.find_at or job != self.job:
            # The other ranks of a learner are children of torchrun, like this process.
            has_ranks = "TORCHELASTIC_RUN_ID" in os.environ
            root = os.getpid()
            if has_ranks:
                root = os.getppid()
            self.family = await asyncio.to_thread(find_family, root)
            self.find_at = now + _FIND_FAMILY_EVERY_S
        total = self._measure()
        spent = _subtract(total, self.reported)
        gpu_seconds = held_gpus * (now - self.reported_at)
        phases = PHASES.seconds()
        payer = job or self.job
        if payer is not None:
            used = {f"gpu_seconds:{self.service}": gpu_seconds}
            for name, seconds in spent.items():
                used[f"core_seconds:{name}"] = seconds
            used |= self._divide(gpu_seconds or spent[self.service], phases)
            await self.exchange.add_cost(payer, used)
        self.job = job
        self.phases = phases
        self.reported = total
        self.reported_at = now

    def _measure(self) -> dict[str, float]:
        """Return the core-seconds of this service, and of the supervisor."""
        # A descendant that others waited for takes its time along.
        least = self.reported.get(self.service, 0.0)
        total = {self.service: max(least, sum(map(core_seconds, self.family)))}
        if self.supervisor is not None:
            with suppress(OSError):  # it has ended
                ticks = map(int, _read_stat(self.supervisor)[11:13])
                total["supervisor"] = sum(ticks) / _TICKS_PER_SECOND
        return total

    def _divide(self, seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds by the phases since the last report; a process may have none."""
        spent = _subtract(phases, self.phases)
        spent.pop("", None)
        scale = seconds / (sum(spent.values()) or 1.0)
        divided = {}
        for phase, part in spent.items():
            divided[f"phase_seconds:{self.service}/{phase}"] = scale * part
        return divided


async def report_attempt_forever(exchange: Exchange, job_id: str, every_s: float) -> None:
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
        spent = {
            "core_seconds:redis": used - reported,
            ACTIVE: now - reported_at,
        }
        await exchange.add_cost(job_id, spent)
        reported = used
        reported_at = now


def _subtract(total: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in total.items()}


def _read_stat(process_id: int | str) -> list[str]:
    """Return the fields of a process after its name, which may contain spaces."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
