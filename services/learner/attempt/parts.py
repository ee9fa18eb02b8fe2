"""What the training loop works with."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.exchange import Exchange

from services.learner.attempt.control import Control
from services.learner.attempt.evaluation import Evaluator
from services.learner.attempt.pretraining import Pretraining
from services.learner.attempt.report import Reporter
from services.learner.durable.checkpoint import Checkpoints
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.training.flops import Flops
from services.learner.training.ranks import Team


@dataclass
class Parts:
    """What the loop works with, each the owner of one concern."""

    exchange: Exchange
    team: Team
    control: Control
    feeder: Feeder
    pretraining: Pretraining
    intake: Intake
    evaluator: Evaluator
    publisher: Publisher
    checkpoints: Checkpoints
    store: SampleStore
    reporter: Reporter
    flops: Flops
