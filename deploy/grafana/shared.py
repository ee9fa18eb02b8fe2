"""Panels that several dashboards show."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries

from deploy.grafana.panels import graph
from deploy.grafana.queries import of_step, shares

_BOUND = {  # what it means that a service is busy, or not
    "rollout": "An engine that is idle waits for requests, that is, for the learner.",
    "grader": "Graders that are never idle hold up the learner.",
    "learner": "wait_for_groups: rollouts and graders are slower than training.",
}


def time_of(service: str) -> timeseries.Panel:
    """What the processes of a service spend their time on."""
    name = service if service == "learner" else f"{service}s"
    return graph(
        f"Time of the {name}",
        _BOUND[service],
        "percentunit",
        shares("weir_phase_seconds_total", f'service="{service}"'),
        minimum=0,
        maximum=1,
        stacked=True,
    )


def staleness() -> timeseries.Panel:
    """How old the policy was that sampled what is trained on."""
    return graph(
        "Staleness",
        "Policy versions between sampling and training: the mean over tokens, and the largest.",
        "short",
        of_step("staleness", "mean"),
        of_step("staleness_max", "largest"),
        minimum=0,
    )
