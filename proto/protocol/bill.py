"""The bill of a job: the seconds and tokens that it has used, and their price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.recipe import Machine

# The parts of a job's cost, each with numbers by name.
KINDS = ("core_seconds", "gpu_seconds", "phase_seconds", "tokens")
ACTIVE = "active_seconds:job"
_SECONDS_PER_HOUR = 3600
Cost = Mapping[str, Mapping[str, float]]


def make_bill(cost: Cost, machine: Machine | None) -> dict[str, Any]:
    """Return the bill of a cost, with GPU-hours and their price.

    A machine without GPUs counts as one GPU while the job has an attempt. The price is None
    without ``machine.price_per_gpu_hour``, in whose currency it is.
    """
    active_s = sum(cost["active_seconds"].values())
    hours = (sum(cost["gpu_seconds"].values()) or active_s) / _SECONDS_PER_HOUR
    hourly = machine.price_per_gpu_hour if machine else None
    return {
        **{kind: dict(cost[kind]) for kind in KINDS},
        "active_seconds": active_s,
        "gpu_hours": hours,
        "price": None if hourly is None else hourly * hours,
    }
