"""Killable processes: a deadline for code that nothing else can stop."""

from services.grader.pool.pool import Cause, Failed, NoWorkerError, Pool, Value

__all__ = ["Cause", "Failed", "NoWorkerError", "Pool", "Value"]
