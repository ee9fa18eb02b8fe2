"""The metrics that every service exports, and the conventions for the others.

A metric is defined beside the code that moves it and named ``weir_<what>_<unit>``; the service is
the scrape target, so it is not part of the name. Ids never are labels.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

READY = Gauge("weir_ready", "1 while the service does its work, 0 while it cannot")
IN_FLIGHT = Gauge("weir_deliveries_in_flight", "Claimed entries that are being worked on")
HANDED_OFF = Counter("weir_deliveries_handed_off_total", "Results this worker handed off", ["to"])
LOST = Counter("weir_deliveries_lost_total", "Entries that another worker finished or took over")
RECLAIMED = Counter("weir_deliveries_reclaimed_total", "Entries claimed that others released")
DEATHS = Counter("weir_worker_deaths_total", "Workers that this one found dead with entries")
FAILURES = Counter("weir_deliveries_failed_total", "Attempts to work on an entry that failed")
GIVEN_UP = Counter("weir_deliveries_given_up_total", "Entries handed on as failed", ["why"])
BACKPRESSURE = Gauge("weir_backpressure_seconds", "Time spent waiting because memory was full")
