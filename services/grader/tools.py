"""What verifiers work with beyond the text itself."""

from __future__ import annotations

from dataclasses import dataclass

from services.grader.judge.judge import Judge
from services.grader.pool import Pool


@dataclass(frozen=True)
class Tools:
    """The shared resources of one grader. Deadlines are wall-clock seconds in the pool."""

    pool: Pool
    judge: Judge | None = None
    quick_deadline_s: float = 1.0  # for the first try of a comparison
    compare_deadline_s: float = 5.0  # for the second, in a fresh worker
