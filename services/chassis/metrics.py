"""The metrics that every service exports, and the conventions for the others.

A metric is defined beside the code that moves it and named ``weir_<what>_<unit>``; the service is
the scrape target, so it is not part of the name. No id is a label but that of a job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from protocol.messages import Loss


def start_at_zero(counter: Counter, *values: str) -> Counter:
    """A counter with one label, of which these values are there from the start.

    Else Prometheus would first see what is counted already, which is no increase to it.
    """
    for value in values:
        counter.labels(value)
    return counter


class Phases(Collector):
    """Divides a process's time: of the phases under way a moment is in the one named first.

    Where none is under way the time goes to ``rest``.
    """

    def __init__(self) -> None:
        self.rest = ""
        self._seconds: dict[str, float] = {}
        self._under_way: list[str] = []
        self._since = time.monotonic()

    def name(self, *phases: str, rest: str) -> None:
        """Say which phases there are, when a service starts; the earlier ones go first."""
        self.rest, self._since = rest, time.monotonic()
        self._seconds = dict.fromkeys((*phases, rest), 0.0)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase, which others may interrupt; the same may be under way several times."""
        self._divide()
        self._seconds.setdefault(phase, 0.0)
        self._under_way.append(phase)
        try:
            yield
        finally:
            self._divide()
            self._under_way.remove(phase)

    def seconds(self) -> dict[str, float]:
        self._divide()
        return dict(self._seconds)

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            "weir_phase_seconds_total", "Time of this process, by what it did", labels=["phase"]
        )
        for phase, seconds in self.seconds().items() if self.rest else ():
            family.add_metric([phase], seconds)
        return [family]

    def _divide(self) -> None:
        now = time.monotonic()
        phase = min(self._under_way, key=list(self._seconds).index, default=self.rest)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now


READY = Gauge("weir_ready", "1 while the service does its work, 0 while it cannot")
IN_FLIGHT = Gauge("weir_deliveries_in_flight", "Claimed entries that are being worked on")
HANDED_OFF = Counter("weir_deliveries_handed_off_total", "Results this worker handed off", ["to"])
LOST = Counter("weir_deliveries_lost_total", "Entries that another worker finished or took over")
RECLAIMED = Counter("weir_deliveries_reclaimed_total", "Entries claimed that others released")
DEATHS = Counter("weir_worker_deaths_total", "Workers that this one found dead with entries")
FAILURES = Counter("weir_deliveries_failed_total", "Attempts to work on an entry that failed")
GIVEN_UP = start_at_zero(
    Counter("weir_deliveries_given_up_total", "Entries handed on as failed", ["why"]),
    *Loss,
)
BACKPRESSURE = Gauge("weir_backpressure_seconds", "Time spent waiting because memory was full")
DEVICES = Gauge(
    "weir_compute_devices", "GPUs that this service computes on; without any, its processes"
)
PHASES = Phases()
REGISTRY.register(PHASES)
