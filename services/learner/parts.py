"""What the training loop works with."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.exchange import Exchange

from services.learner.checkpoint import Checkpoints
from services.learner.control import Control
from services.learner.evaluation import Evaluator
from services.learner.feeder import Feeder
from services.learner.flops import Flops
from services.learner.intake import Intake
from services.learner.pretraining import Pretraining
from services.learner.publish import Publisher
from services.learner.ranks import Team
from services.learner.report import Reporter
from services.learner.sample_store import SampleStore


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
