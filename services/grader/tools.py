"""The resources of verifiers, and the grader's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.messages import Episode, Score, Ungradable
from protocol.rewards import JUDGE

from services.chassis.deployment import Reader, parse_count, split_list
from services.chassis.pool import Pool
from services.chassis.security import is_allowed
from services.grader.judge.judge import Judge
from services.grader.shared_work import SharedWork
from services.grader.timeouts import COMPARISON_S, QUICK_COMPARISON_S


@dataclass(frozen=True)
class Tools:
    """The shared resources of one grader. Deadlines are seconds of CPU time in the pool."""

    pool: Pool
    judge: Judge | None = None
    other_judges: Mapping[str, Judge] = field(default_factory=dict)  # by the deployment's names
    sandbox: Pool | None = None  # runs clients' code; None: it is not allowed
    episode: Episode | None = None  # of the current response
    quick_deadline_s: float = QUICK_COMPARISON_S
    compare_deadline_s: float = COMPARISON_S
    comparisons: SharedWork[Score] = field(default_factory=SharedWork, compare=False)
    examinations: SharedWork[Ungradable | None] = field(default_factory=SharedWork, compare=False)

    @property
    def named_judges(self) -> dict[str, Judge]:
        judges: dict[str, Judge] = {}
        if self.judge:
            judges = {JUDGE: self.judge, self.judge.settings.model: self.judge}
        return judges | dict(self.other_judges)


@dataclass(frozen=True)
class Settings:
    groups_in_flight: int
    workers: int
    extensions: tuple[str, ...] = ()
    python: bool = False  # whether clients' code may run

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        read = Reader(environment)
        spare_cores = max(1, len(os.sched_getaffinity(0)) - 1)
        return cls(
            groups_in_flight=read("WEIR_GRADER_GROUPS_IN_FLIGHT", parse_count, "256"),
            workers=read("WEIR_GRADER_WORKERS", parse_count, str(spare_cores)),
            extensions=read("WEIR_GRADER_EXTENSIONS", split_list, ""),
            python=is_allowed(read, "WEIR_GRADER_PYTHON"),
        )
