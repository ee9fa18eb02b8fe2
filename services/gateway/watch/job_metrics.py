"""Metrics of jobs: what their records and events tell, for as long as anybody looks at them.

A learner's own metrics end with its process, often before Prometheus has seen the last of them. The
gateway reads the records and events, which stay, and so exports the same after its own restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from protocol.exchange import Exchange
from protocol.messages import JobRecord

from services.chassis.deployment import Deployment
from services.gateway.errors import in_time
from services.gateway.models.checkpoints import kept_checkpoints
from services.gateway.watch.story import Story

KEPT_JOBS = 20  # the newest, and beside them all that were begun and have not ended
_PAGE = 500  # events of a job that are taken in at one look
_JOB = ("job", "recipe")


@dataclass(eq=False)  # a registry hashes it
class JobMetrics(Collector):
    """Exports what the stories of jobs have told; `follow` reads on in them."""

    exchange: Exchange
    deployment: Deployment
    stories: dict[str, Story] = field(default_factory=dict)

    async def follow(self, records: Sequence[JobRecord]) -> None:
        """Take in what is new of these jobs, and forget all others.

        Raises:
            Problem: 503 if the exchange is silent; the next call goes on.
        """
        self.stories = {r.id: self.stories.get(r.id) or Story(r) for r in records}
        for record in records:
            story = self.stories[record.id]
            was = story.record
            if not (story.is_done and (was.state, was.attempt) == (record.state, record.attempt)):
                await in_time(self._read_on(story, record))

    async def look_for_checkpoints(self) -> None:
        """Take in which checkpoint is the newest of each job."""
        for job_id, story in list(self.stories.items()):
            kept = await asyncio.to_thread(kept_checkpoints, self.deployment.job_dir(job_id))
            for newest in kept[:1]:
                story.checkpoint = (newest.step, newest.created_at)

    async def _read_on(self, story: Story, record: JobRecord) -> None:
        """The record was read before its events: what an ended job had to say is among them."""
        rows = await self.exchange.events(record.id, after=story.place, count=_PAGE)
        for place, event in rows:
            story.place = place
            story.see(event)
        story.record, is_at_end = record, len(rows) < _PAGE
        story.is_current = story.is_current or is_at_end
        story.is_done = record.state.is_final and is_at_end

    def collect(self) -> Iterable[Metric]:
        """The metrics at this moment."""
        families = {family.name: family for family in _families()}
        now = time.time()
        for story in self.stories.values():
            job = (story.record.id, story.record.recipe.name)
            for name, labels, value in story.samples(now):
                families[name.removesuffix("_total")].add_metric([*job, *labels], value)
        return families.values()


def _families() -> list[Counter | Gauge]:
    return [
        Gauge("weir_job_state", "1 for the state that a job is in", labels=[*_JOB, "state"]),
        Gauge("weir_job_step", "Training steps made", labels=_JOB),
        Gauge("weir_job_steps", "Training steps wanted", labels=_JOB),
        Counter("weir_job_attempts_total", "Lives of the learner that worked on it", labels=_JOB),
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
        *_of_events(),
        *_of_time(),
    ]


def _of_events() -> list[Counter | Gauge]:
    return [
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
        Counter(
            "weir_job_phase_seconds_total", "Where the learner's time went", labels=[*_JOB, "phase"]
        ),
    ]


def _of_time() -> list[Counter | Gauge]:
    return [
        Gauge(
            "weir_job_progress_timestamp_seconds",
            "When the last step, evaluation, attempt or resumption was told",
            labels=_JOB,
        ),
        Gauge("weir_job_step_seconds_median", "Median of the last 50 steps' times", labels=_JOB),
        Gauge("weir_job_evaluation_seconds_max", "The longest evaluation so far", labels=_JOB),
        Gauge("weir_job_checkpoint_step", "The step of the newest checkpoint", labels=_JOB),
        Gauge("weir_job_checkpoint_every_steps", "Steps between two checkpoints", labels=_JOB),
        Gauge(
            "weir_job_checkpoint_age_seconds",
            "Age of the newest checkpoint; before the first, time since the job began",
            labels=_JOB,
        ),
    ]
