"""A job's story: what its events have told so far, as far as metrics need it. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from protocol.messages import JobEvent, JobRecord, JobState, Loss
from protocol.recipe import Purpose

Sample = tuple[str, tuple[str, ...], float]  # a metric, its labels beyond the job's, its value

KEPT_STEPS = 51  # of which the median is taken
# A step measures them only if the learner's own version sampled some of it; the last ones stay,
# or an alert would never have them for long enough.
_OF_SOME_STEPS = ("parity_max", "parity_mean")
_NONE_DROPPED = dict.fromkeys(("no_signal", "surplus", *Loss), 0)
_IN_RESULT = {
    Purpose.TRAIN: "groups",
    Purpose.EVAL: "evaluation_groups",
    Purpose.PRETRAIN: "pretraining_groups",
}
_TOTALS = {  # names in a step's totals, and of the counters that they are
    "tokens": "weir_job_tokens_total",
    "samples": "weir_job_samples_total",
    "empty_steps": "weir_job_empty_steps_total",
    "groups_without_signal": "weir_job_groups_without_signal_total",
    "exposed_grading_seconds": "weir_job_exposed_grading_seconds_total",
}


@dataclass
class Story:
    """One job: its record, and its events, each taken in once and in their order."""

    record: JobRecord
    place: str = "0"  # in the stream of events: all up to here have been taken in
    is_current: bool = False  # it has been read to its end once; before, it tells of old
    is_done: bool = False  # it has ended, and been read to its end since
    checkpoint: tuple[int, float] | None = None  # the newest one's step, and when it was written
    metric: dict[str, float] = field(default_factory=dict)
    pretrain_metric: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    best_evaluation: dict[str, float] = field(default_factory=dict)  # of the highest accuracy
    other_evaluations: dict[str, float] = field(default_factory=dict)  # by "name/number"
    accounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # ledgers, by purpose
    totals: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    progress_at: float | None = None
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    evaluation_seconds_max: float = 0.0

    def see(self, event: JobEvent) -> None:
        """Take in the next event."""
        if event.type == "metrics":
            self._see_metrics(event)
        elif isinstance(told := event.data.get("other_evaluation"), Mapping):
            numbers = {f"{told['name']}/{name}": value for name, value in _numbers(told).items()}
            self.other_evaluations |= numbers
        elif event.begins:
            self.progress_at = event.created_at

    def _see_metrics(self, event: JobEvent) -> None:
        data: Mapping[str, Any] = event.data
        since = event.created_at - (self.progress_at or event.created_at)
        purpose, self.progress_at = Purpose.TRAIN, event.created_at
        if "evaluation" in data:
            purpose, self.evaluation = Purpose.EVAL, _numbers(data["evaluation"])
            told = (e for e in (self.best_evaluation, self.evaluation) if "accuracy" in e)
            self.best_evaluation = max(told, key=itemgetter("accuracy"), default={})
            since = max(since, self.evaluation.get("seconds", 0.0))
            self.evaluation_seconds_max = max(self.evaluation_seconds_max, since)
        elif "pretrain_step" in data:
            purpose, self.pretrain_metric = Purpose.PRETRAIN, _numbers(data)
        else:
            measured = {name: self.metric[name] for name in _OF_SOME_STEPS if name in self.metric}
            self.metric = measured | _numbers(data)
            if "seconds" in self.metric:
                self.step_seconds.append(self.metric["seconds"])
        if isinstance(account := data.get("groups"), Mapping):
            self.accounts[purpose] = account
        _raise_to(self.totals, data.get("totals"))
        _raise_to(self.phases, data.get("phase_seconds_total"))

    def samples(self, now: float) -> Iterator[Sample]:
        """Every sample of the job's metrics at a moment, in seconds since 1970."""
        record = self.record
        for state in JobState:
            yield "weir_job_state", (state,), record.state is state
        yield "weir_job_steps", (), record.recipe.training.steps
        yield "weir_job_checkpoint_every_steps", (), record.recipe.training.checkpoint_every
        yield "weir_job_attempts_total", (), record.attempt
        if self.is_current:
            yield "weir_job_step", (), max(record.step, int(self.metric.get("step", 0)))
            yield from self._told()
            yield from self._ledger()
            yield from self._times(now)

    def _told(self) -> Iterator[Sample]:
        for name, value in self.metric.items():
            yield "weir_job_metric", (name,), value
        for name, value in self.pretrain_metric.items():
            yield "weir_job_pretrain_metric", (name,), value
        for name, value in (self.evaluation | self.other_evaluations).items():
            yield "weir_job_evaluation", (name,), value
        for name, value in self.best_evaluation.items():
            yield "weir_job_best_evaluation", (name,), value
        for name, metric in _TOTALS.items():
            yield metric, (), self.totals.get(name, 0.0)
        for phase, seconds in self.phases.items():
            yield "weir_job_phase_seconds_total", (phase,), seconds

    def _ledger(self) -> Iterator[Sample]:
        for purpose in Purpose:
            final = self.record.result.get(_IN_RESULT[purpose])
            account: Any = final if final is not None else self.accounts.get(purpose)
            if account is None:
                continue
            dropped = _NONE_DROPPED | _numbers(account.get("dropped"))
            for state in ("asked", "trained", "under_way"):
                yield "weir_job_groups", (purpose, state), account.get(state, 0)
            yield "weir_job_groups", (purpose, "dropped"), sum(dropped.values())
            for reason, count in dropped.items():
                yield "weir_job_groups_dropped", (purpose, reason), count

    def _times(self, now: float) -> Iterator[Sample]:
        yield "weir_job_evaluation_seconds_max", (), self.evaluation_seconds_max
        if self.progress_at is not None:
            yield "weir_job_progress_timestamp_seconds", (), self.progress_at
        if (median := median_of(self.step_seconds)) is not None:
            yield "weir_job_step_seconds_median", (), median
        if self.checkpoint is not None:
            yield "weir_job_checkpoint_step", (), self.checkpoint[0]
        since = self.checkpoint[1] if self.checkpoint else self.record.started_at
        if since is not None:
            yield "weir_job_checkpoint_age_seconds", (), max(0.0, now - since)


def median_of(step_seconds: Sequence[float]) -> float | None:
    """The median time of a job's last steps, once there are three: the first takes long."""
    return statistics.median(step_seconds) if len(step_seconds) > 2 else None


def _numbers(data: Any) -> dict[str, float]:
    """The numbers among the values; what was not measured, or is not finite, is not there."""
    pairs = data.items() if isinstance(data, Mapping) else ()
    return {
        name: float(value)
        for name, value in pairs
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _raise_to(counters: dict[str, float], told: Any) -> None:
    """Counters never fall: a step that is made anew is told with a little less of them."""
    for name, value in _numbers(told).items():
        counters[name] = max(value, counters.get(name, 0.0))
