"""A taskset whose agent is one of `verifiers`, a program."""

from tests.contract.environment.tasksets import Tasks

__all__ = ["Tasks"]
