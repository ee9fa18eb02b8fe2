"""Metrics of jobs, from their records and events.

A learner's own metrics end with its process, often before Prometheus has seen the last of them.
Records and events stay, so a gateway exports the same after its own restart.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import Metric
from protocol.messages import (
    EvaluationMetrics,
    EvaluationResult,
    FailureKind,
    JobEvent,
    JobRecord,
    JobState,
    Notice,
    OtherEvaluation,
    PretrainMetrics,
    Requested,
    StepMetrics,
)
from protocol.recipe import Purpose

from services.gateway.core.watch.forecast import Forecast, forecast

# The values of a metric: one, or by its label beyond the job's, or by its two labels.
Values = float | Mapping[str, float] | Mapping[tuple[str, ...], float] | None
Ledger = dict[tuple[str, ...], float]

NUM_STEP_TIMES = 51  # the median is taken of this many
# A step measures these only if the learner's own version sampled some of it. The last values stay:
# an alert would never last long enough otherwise.
_MEASURED_NOW_AND_THEN = ("parity_max", "parity_mean", "probe_gap")
_MAX_VALUE = 2.0**63  # a client may report any number
_NONE_DROPPED = dict.fromkeys(("no_signal", "surplus", *FailureKind), 0)
_RESULT_NAMES = {
    Purpose.TRAIN: "groups",
    Purpose.EVAL: "evaluation_groups",
    Purpose.PRETRAIN: "pretraining_groups",
}
_TOTALS = ("tokens", "samples", "empty_steps", "groups_without_signal", "exposed_grading_seconds")
_JOB = ("job", "recipe")
_FAMILIES = (
    Gauge("weir_job_state", "1 for the state that a job is in", labels=[*_JOB, "state"]),
    Gauge("weir_job_requested", "1 for a user's last request", labels=[*_JOB, "request"]),
    Gauge("weir_job_step", "Training steps made", labels=_JOB),
    Gauge("weir_job_steps", "Training steps wanted", labels=_JOB),
    Counter("weir_job_attempts_total", "Attempts of the learner", labels=_JOB),
    Gauge(
        "weir_job_groups",
        "The ledger: asked = trained + dropped + under_way",
        labels=[*_JOB, "purpose", "state"],
    ),
    Gauge(
        "weir_job_groups_dropped",
        "Groups dropped, by reason",
        labels=[*_JOB, "purpose", "reason"],
    ),
    Gauge("weir_job_metric", "Every number of the last step", labels=[*_JOB, "name"]),
    Gauge(
        "weir_job_pretrain_metric",
        "Every number of the critic's last step alone",
        labels=[*_JOB, "name"],
    ),
    Gauge("weir_job_evaluation", "Every number of the last evaluation", labels=[*_JOB, "name"]),
    Gauge(
        "weir_job_best_evaluation",
        "Every number of the evaluation with the highest accuracy so far",
        labels=[*_JOB, "name"],
    ),
    Counter("weir_job_tokens_total", "Response tokens trained on", labels=_JOB),
    Counter("weir_job_samples_total", "Responses trained on", labels=_JOB),
    Counter("weir_job_empty_steps_total", "Steps that made no update", labels=_JOB),
    Counter(
        "weir_job_groups_without_signal_total",
        "Groups whose responses all have advantage 0, trained on or dropped for it",
        labels=_JOB,
    ),
    Counter(
        "weir_job_exposed_grading_seconds_total",
        "Time that the learner waited for groups while they were graded",
        labels=_JOB,
    ),
    Gauge("weir_job_bill", "Every number of the bill at the last step", labels=[*_JOB, "name"]),
    Counter(
        "weir_job_phase_seconds_total", "Where the learner's time went", labels=[*_JOB, "phase"]
    ),
    Gauge(
        "weir_job_progress_timestamp_seconds",
        "When the last step, evaluation, attempt or resumption was reported",
        labels=_JOB,
    ),
    Gauge("weir_job_step_seconds_median", "Median of the last 50 steps' times", labels=_JOB),
    Gauge("weir_job_evaluation_seconds_max", "The longest evaluation so far", labels=_JOB),
    Gauge(
        "weir_job_checkpoint_step",
        "The step of the newest checkpoint, 0 before the first",
        labels=_JOB,
    ),
    Gauge("weir_job_checkpoint_every_steps", "Steps between two checkpoints", labels=_JOB),
    Gauge(
        "weir_job_checkpoint_age_seconds",
        "Age of the newest checkpoint; before the first, time since the job began",
        labels=_JOB,
    ),
)


@dataclass
class JobHistory:
    """A job's record, and the sums of its events, each added once and in order."""

    record: JobRecord
    position: str = "0"  # of the last event added, in the stream
    is_current: bool = False  # all events have been added once; before, the numbers are old
    is_done: bool = False  # the job has ended, and all its events have been added
    checkpoint: tuple[int, float] | None = None  # the newest one's step and time
    metric: dict[str, float] = field(default_factory=dict)
    pretrain_metric: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    best_evaluation: dict[str, float] = field(default_factory=dict)  # with the highest accuracy
    other_evaluations: dict[str, float] = field(default_factory=dict)  # by "name/number"
    ledgers: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by purpose
    totals: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    bill: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, float, int]] = field(default_factory=list)  # step, accuracy, responses
    progress_at: float | None = None
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_STEP_TIMES))
    evaluation_seconds_max: float = 0.0
    _forecast: tuple[int, Forecast | None] = (0, None)  # by so many evaluations

    def add(self, event: JobEvent) -> None:
        since_s = event.created_at - (self.progress_at or event.created_at)
        if event.type == "metrics" or event.begins:
            self.progress_at = event.created_at
        match event.data:
            case StepMetrics() as step:
                self._add_step(step)
            case PretrainMetrics() as step:
                self.pretrain_metric = _numbers(step.metrics)
                self.pretrain_metric["pretrain_step"] = step.pretrain_step
                self._add_work(Purpose.PRETRAIN, step)
            case EvaluationMetrics() as evaluation:
                self._add_evaluation(evaluation, since_s)
            case OtherEvaluation(other_evaluation=result):
                for name, value in _result_numbers(result).items():
                    self.other_evaluations[f"{result.name}/{name}"] = value
            case Notice():
                pass

    def _add_step(self, step: StepMetrics) -> None:
        names = self.metric.keys() & {*_MEASURED_NOW_AND_THEN}
        measured = {name: self.metric[name] for name in names}
        self.metric = {**measured, "step": step.step, **_numbers(step.metrics)}
        if "seconds" in self.metric:
            self.step_seconds.append(self.metric["seconds"])
        self._add_work(Purpose.TRAIN, step)

    def _add_evaluation(self, event: EvaluationMetrics, since_s: float) -> None:
        self.evaluation = _result_numbers(event.evaluation)
        if {"accuracy", "samples"} <= self.evaluation.keys():
            samples = int(self.evaluation["samples"])
            self.curve.append((event.step, self.evaluation["accuracy"], samples))
        best = self.best_evaluation.get("accuracy", -math.inf)
        if self.evaluation.get("accuracy", -math.inf) > best:
            self.best_evaluation = self.evaluation
        seconds = max(since_s, self.evaluation.get("seconds", 0.0))
        self.evaluation_seconds_max = max(self.evaluation_seconds_max, seconds)
        if event.groups is not None:
            self.ledgers[Purpose.EVAL] = event.groups

    def _add_work(self, purpose: Purpose, step: StepMetrics | PretrainMetrics) -> None:
        if step.groups is not None:
            self.ledgers[purpose] = step.groups
        _raise_counters(self.totals, step.totals)
        _raise_counters(self.phases, step.phase_seconds_total)
        for name, value in (step.bill or {}).items():
            parts = value if isinstance(value, Mapping) else {"": value}
            numbers = _numbers(parts).items()
            self.bill |= {f"{name}/{part}".strip("/"): number for part, number in numbers}

    def forecast(self) -> Forecast | None:
        """Return the forecast of the last evaluation of an unfinished job, if there is one.

        It is computed once after each evaluation.
        """
        if self.record.state.is_final or not self.curve:
            return None
        if self._forecast[0] != len(self.curve):
            steps, accuracies, samples = zip(*sorted(self.curve), strict=True)
            last = self.record.recipe.training.steps
            result = forecast(steps, accuracies, samples, last)
            self._forecast = len(self.curve), result
        return self._forecast[1]

    @property
    def median_step_s(self) -> float | None:
        """The median time of the last steps, of three or more since the first takes long."""
        return statistics.median(self.step_seconds) if len(self.step_seconds) > 2 else None

    def values(self, now: float) -> dict[str, Values]:
        """Return the values of each metric at a moment, in seconds since 1970."""
        record = self.record
        training = record.recipe.training
        values: dict[str, Values] = {
            "weir_job_state": {state: record.state is state for state in JobState},
            "weir_job_requested": {request: record.requested is request for request in Requested},
            "weir_job_steps": None if record.recipe.client else training.steps,
            "weir_job_checkpoint_every_steps": training.checkpoint_every,
            "weir_job_attempts_total": record.attempt,
        }
        if not self.is_current:
            return values
        groups, dropped = self._count_groups()
        checkpoint_step, saved_at = self.checkpoint or (0, record.started_at)
        return values | {
            "weir_job_step": max(record.step, int(self.metric.get("step", 0))),
            "weir_job_groups": groups,
            "weir_job_groups_dropped": dropped,
            "weir_job_metric": self.metric,
            "weir_job_pretrain_metric": self.pretrain_metric,
            "weir_job_evaluation": self.evaluation | self.other_evaluations,
            "weir_job_best_evaluation": self.best_evaluation,
            **{f"weir_job_{name}_total": self.totals.get(name, 0.0) for name in _TOTALS},
            "weir_job_bill": self.bill,
            "weir_job_phase_seconds_total": self.phases,
            "weir_job_progress_timestamp_seconds": self.progress_at,
            "weir_job_step_seconds_median": self.median_step_s,
            "weir_job_evaluation_seconds_max": self.evaluation_seconds_max,
            "weir_job_checkpoint_step": checkpoint_step,
            "weir_job_checkpoint_age_seconds": saved_at and max(0.0, now - saved_at),
        }

    def _count_groups(self) -> tuple[Ledger, Ledger]:
        """Return groups by purpose and state, and those dropped by purpose and reason."""
        groups: Ledger = {}
        reasons: Ledger = {}
        for purpose, name in _RESULT_NAMES.items():
            ledger: Any = self.record.result.get(name, self.ledgers.get(purpose))
            if ledger is not None:
                dropped = _NONE_DROPPED | _numbers(ledger.get("dropped"))
                for state in ("asked", "trained", "under_way"):
                    groups[purpose, state] = _numbers(ledger).get(state, 0)
                groups[purpose, "dropped"] = sum(dropped.values())
                reasons |= {(purpose, reason): count for reason, count in dropped.items()}
        return groups, reasons


def build_families(histories: Iterable[JobHistory], now: float) -> Iterable[Metric]:
    """Return the metrics of jobs at a moment, in seconds since 1970."""
    families = {family.name: family for family in deepcopy(_FAMILIES)}
    for history in histories:
        job = (history.record.id, history.record.recipe.name)
        for name, values in history.values(now).items():
            for labels, value in _iterate(values):
                families[name.removesuffix("_total")].add_metric([*job, *labels], value)
    return families.values()


def _iterate(values: Values) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each value with its labels beyond the job's."""
    if isinstance(values, Mapping):
        for labels, value in values.items():
            yield (labels if isinstance(labels, tuple) else (labels,)), value
    elif values is not None:
        yield (), values


def _result_numbers(result: EvaluationResult) -> dict[str, float]:
    return {"step": result.step} | _numbers(result.metrics)


def _numbers(values: Any) -> dict[str, float]:
    """Return the finite numbers among some values."""
    pairs = values.items() if isinstance(values, Mapping) else ()
    return {
        name: float(value)
        for name, value in pairs
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < _MAX_VALUE
    }


def _raise_counters(counters: dict[str, float], values: Any) -> None:
    """Raise counters to newer values; a step that is repeated may report less."""
    for name, value in _numbers(values).items():
        counters[name] = max(value, counters.get(name, 0.0))
