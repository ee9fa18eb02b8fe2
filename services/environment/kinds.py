"""The kinds of environments, by what the recipe names, and which of them the operator allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry
from services.environment import openenv
from services.environment.episodes import Play
from services.environment.hosts import Hosts


@dataclass(frozen=True)
class Kinds:
    hosts: Hosts
    tasksets: tuple[str, ...]  # that may be played

    @asynccontextmanager
    async def open_environment(self, environment: Environment, job_id: str) -> AsyncIterator[Play]:
        """An environment that is ready for the episodes of a group.

        Raises:
            UnsupportedEntry: if it is none of this worker's, or the operator does not allow it.
        """
        if problem := self._refusal(environment):
            raise UnsupportedEntry(problem)
        if environment.url is not None:
            async with openenv.open_server(environment, self.hosts.addresses) as play:
                yield play
        else:
            async with self.hosts.open_group(environment, job_id) as player:
                yield player.play

    def _refusal(self, environment: Environment) -> str | None:
        taskset = environment.taskset
        if environment.command is not None and not self.hosts.may_run_programs:
            return (
                "environment.command is refused, since it runs a client's program; "
                "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
            )
        if taskset is not None and taskset not in self.tasksets:
            return (
                f"environment.taskset = {taskset!r} is not one of WEIR_ENVIRONMENT_TASKSETS = "
                f"{','.join(self.tasksets)}; its operator may add it there"
            )
        return None
