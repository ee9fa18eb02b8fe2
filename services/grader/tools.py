"""What verifiers work with beyond the text itself."""

from __future__ import annotations

from dataclasses import dataclass

from services.grader.pool import Pool


@dataclass(frozen=True)
class Tools:
    """The shared resources of one grader."""

    pool: Pool
    compare_deadline_s: float = 5.0  # for one comparison of two answers, wall clock
