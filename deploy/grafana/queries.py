"""Queries that several dashboards ask, and how their series are called."""

from __future__ import annotations

Series = tuple[str, str]  # an expression, and the legend of what it gives
JOB = 'job=~"$job"'
NAME = "{{recipe}} {{job}}"
WINDOW = "[$__rate_interval]"


def of_job(metric: str, labels: str = "", word: str = "") -> Series:
    """A metric of the chosen jobs; ``word`` tells it from others in the same panel."""
    selected = f"{JOB},{labels}" if labels else JOB
    return f"{metric}{{{selected}}}", f"{word} {NAME}".strip()


def of_step(name: str, word: str = "") -> Series:
    """A number of the chosen jobs' last training step."""
    return of_job("weir_job_metric", f'name="{name}"', word)


def of_evaluation(name: str, word: str = "") -> Series:
    """A number of the chosen jobs' last evaluation."""
    return of_job("weir_job_evaluation", f'name="{name}"', word)


def rate(counter: str, by: str = "", labels: str = "") -> Series:
    """How fast a counter rises, per second: in all, or for each value of the label ``by``."""
    return _total("rate", counter, by, labels)


def increase(counter: str, by: str = "", labels: str = "") -> Series:
    """How much a counter has risen from one point of the graph to the next."""
    return _total("increase", counter, by, labels)


def part(counter: str, labels: str, legend: str) -> Series:
    """The share of a counter's rise that has these labels."""
    return f"{rate(counter, '', labels)[0]} / {rate(counter)[0]}", legend


def quantile(share: float, histogram: str, by: str = "") -> str:
    """A quantile of what a histogram has counted lately; for each value of the label ``by``."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{WINDOW})))"


def shares(seconds: str, labels: str) -> Series:
    """The share of each phase in all the time that a counter of seconds has counted."""
    time = f"rate({seconds}{{{labels}}}{WINDOW})"
    return f"sum by (phase) ({time}) / on () group_left () sum({time})", "{{phase}}"


def _total(function: str, counter: str, by: str, labels: str) -> Series:
    selector = f"{{{labels}}}" if labels else ""
    grouping = f"sum by ({by}) " if by else "sum"
    return f"{grouping}({function}({counter}{selector}{WINDOW}))", f"{{{{{by}}}}}" if by else ""
