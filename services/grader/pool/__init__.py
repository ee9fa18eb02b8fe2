"""Killable processes: a deadline for code that nothing else can stop."""

from services.grader.pool.outcome import Cause, Failed, Value
from services.grader.pool.pool import Pool
from services.grader.pool.processes import NoWorkerError

__all__ = ["Cause", "Failed", "NoWorkerError", "Pool", "Value"]
