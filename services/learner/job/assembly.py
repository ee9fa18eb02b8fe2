"""What an attempt works with, and how that takes up what earlier attempts have left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.messages import JobRecord, Task
from protocol.recipe import Purpose

from services.chassis.service import Service
from services.learner.attempt import Attempt, MachineFault
from services.learner.durable.checkpoint import Checkpoints, LearnerState
from services.learner.durable.progress import Progress
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore
from services.learner.job.control import Control
from services.learner.job.learning import Learning
from services.learner.job.phases import Phase
from services.learner.job.phases.evaluation import Evaluation
from services.learner.job.phases.pretraining import Pretraining
from services.learner.job.phases.training import Training
from services.learner.job.reconciler import Reconciler
from services.learner.job.report import Reporter
from services.learner.job.versions import Versions
from services.learner.supply.evaluator import Evaluator, HeldOut
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.training.flops import Flops
from services.learner.training.ranks import Team
from services.learner.training.scoring import Scoring

log = logging.getLogger(__name__)


@dataclass
class Assembly:
    """What one attempt works with."""

    learning: Learning
    phases: Sequence[Phase]  # the first that is due comes next
    feeders: Sequence[Feeder]
    evaluator: Evaluator

    async def replay(self, first_segment: str) -> None:
        """Take up what earlier attempts have logged from this segment on, and asked for."""
        learning, attempt = self.learning, self.learning.attempt
        positions = learning.progress.positions
        logged = await asyncio.to_thread(learning.intake.replay, first_segment, positions)
        there = learning.intake.keys_waiting() | await attempt.exchange.under_way(attempt.job_id)
        for feeder in self.feeders:
            feeder.resume(positions[feeder.purpose], there)
        self.evaluator.asked = positions[Purpose.EVAL]
        step = learning.progress.step
        log.info("restored", extra={"step": step, "logged_groups": logged})


async def newest_checkpoint(
    checkpoints: Checkpoints, record: JobRecord, num_ranks: int, reporter: Reporter
) -> tuple[Path, LearnerState] | None:
    """The newest whole one; people hear of newer ones that are damaged.

    Raises:
        MachineFault: if there must be one and there is none.
    """
    newest = await asyncio.to_thread(checkpoints.newest)
    if newest is None:
        # The second one is begun when the first is whole.
        if record.step > 2 * record.recipe.training.checkpoint_every:
            raise MachineFault(
                f"{checkpoints.folder} has no checkpoint, though {record.step} "
                "steps were made; mount or restore that folder, or cancel the job"
            )
        return None
    folder, state = newest
    for damaged, how in checkpoints.damaged.items():
        message = f"the checkpoint {damaged} is damaged, {how}; it goes on from {folder}"
        await reporter.say(f"damaged:{damaged.name}", message, level="warn")
    if state.ranks not in (None, num_ranks):
        message = f"a checkpoint of {state.ranks} ranks goes on with {num_ranks}"
        await reporter.say(f"ranks:{checkpoints.attempt}", message)
    return newest


def assemble(
    service: Service,
    team: Team,
    attempt: Attempt,
    progress: Progress,
    checkpoints: Checkpoints,
    tasks: tuple[Sequence[Task], HeldOut],
    flops: Flops,
) -> Assembly:
    """Put together what an attempt works with; ``tasks`` are to train on, and held out."""
    train, held_out = tasks
    reporter, control = Reporter(attempt.exchange, attempt.job_id), Control(service, attempt.job_id)
    intake = Intake(attempt)
    store = SampleStore(attempt.folder / "samples", attempt.number, service.deployment)
    publisher = Publisher(
        attempt,
        *service.deployment.weights_roots,
        by_delta=service.deployment.weights_by_delta,
    )
    feeders = {
        purpose: Feeder(attempt, train, purpose, partial(intake.has, purpose))
        for purpose in (Purpose.TRAIN, Purpose.PRETRAIN)
    }
    evaluator = Evaluator(attempt, held_out)
    askers = {**feeders, Purpose.EVAL: evaluator}
    versions = Versions(attempt, progress, team, control, intake, store, publisher, checkpoints)
    learning = Learning(
        attempt=attempt,
        progress=progress,
        team=team,
        control=control,
        reporter=reporter,
        intake=intake,
        reconciler=Reconciler(attempt, askers, intake, publisher),
        versions=versions,
        scoring=Scoring.of(attempt.recipe),
    )
    phases = (
        Evaluation(learning, evaluator),
        Pretraining(learning, feeders[Purpose.PRETRAIN]),
        Training(learning, feeders[Purpose.TRAIN], flops),
    )
    return Assembly(learning, phases, tuple(feeders.values()), evaluator)
