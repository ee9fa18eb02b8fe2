"""The metrics that every service exports, and the conventions for the others.

A metric is defined next to the code that changes it, and named ``weir_<what>_<unit>``. The service
is the scrape target, so it is no part of the name. The only id used as a label is that of a job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from protocol.messages import FailureKind


def start_at_zero(counter: Counter, *values: str) -> Counter:
    """Export these values of a counter's only label from the start.

    Prometheus sees no increase in a series whose first sample is already counted.
    """
    for value in values:
        counter.labels(value)
    return counter


class Phases(Collector):
    """Divides a process's time into phases. Of the active phases, the one named first counts.

    Time without an active phase counts for ``idle``.
    """

    def __init__(self) -> None:
        self.idle = ""
        self._seconds: dict[str, float] = {}
        self._active: list[str] = []
        self._since = time.monotonic()

    def name(self, *phases: str, idle: str) -> None:
        """Declare the phases when a service starts; earlier ones have priority."""
        self.idle = idle
        self._since = time.monotonic()
        self._seconds = dict.fromkeys((*phases, idle), 0.0)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the body's time for a phase. Phases may overlap, also with themselves."""
        self._divide()
        self._seconds.setdefault(phase, 0.0)
        self._active.append(phase)
        try:
            yield
        finally:
            self._divide()
            self._active.remove(phase)

    def seconds(self) -> dict[str, float]:
        self._divide()
        return dict(self._seconds)

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            "weir_phase_seconds_total", "Time of this process in each phase", labels=["phase"]
        )
        for phase, seconds in self.seconds().items() if self.idle else ():
            family.add_metric([phase], seconds)
        return [family]

    def _divide(self) -> None:
        now = time.monotonic()
        phase = min(self._active, key=list(self._seconds).index, default=self.idle)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now


READY = Gauge("weir_ready", "1 while the service does its work, 0 while it cannot")
IN_FLIGHT = Gauge("weir_deliveries_in_flight", "Claimed entries that are being processed")
HANDED_OFF = Counter("weir_deliveries_handed_off_total", "Results this worker handed off", ["to"])
LOST = Counter("weir_deliveries_lost_total", "Entries that another worker finished or took over")
RECLAIMED = Counter("weir_deliveries_reclaimed_total", "Entries claimed that others released")
DEATHS = Counter("weir_worker_deaths_total", "Workers that this one found dead with entries")
FAILURES = Counter("weir_deliveries_failed_total", "Attempts to process an entry that failed")
GIVEN_UP = start_at_zero(
    Counter("weir_deliveries_given_up_total", "Entries handed on as failed", ["why"]),
    *FailureKind,
)
BACKPRESSURE = Gauge("weir_backpressure_seconds", "Time spent waiting because memory was full")
DEVICES = Gauge(
    "weir_compute_devices", "GPUs that this service computes on; without any, its processes"
)
PHASES = Phases()
REGISTRY.register(PHASES)
