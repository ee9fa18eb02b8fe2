"""The kinds of environments, by the recipe's setting, if the operator allows them."""

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
class EnvironmentKinds:
    """The environments of a worker; ``tasksets`` are the allowed ones."""

    hosts: Hosts
    tasksets: tuple[str, ...]

    @asynccontextmanager
    async def open_environment(self, environment: Environment, job_id: str) -> AsyncIterator[Play]:
        """Open an environment for the episodes of a group.

        Raises:
            UnsupportedEntry: if this worker does not have it, or the operator does not allow it.
        """
        self._refuse_forbidden(environment)
        if environment.url is not None:
            async with openenv.open_server(environment, self.hosts.addresses) as play:
                yield play
        else:
            async with self.hosts.open_group(environment, job_id) as player:
                yield player.play

    def _refuse_forbidden(self, environment: Environment) -> None:
        taskset = environment.taskset
        if environment.command is not None and not self.hosts.may_run_programs:
            raise UnsupportedEntry(
                "environment.command is refused, since it runs a client's program; "
                "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
            )
        if taskset is not None and taskset not in self.tasksets:
            raise UnsupportedEntry(
                f"environment.taskset = {taskset!r} is not one of WEIR_ENVIRONMENT_TASKSETS = "
                f"{','.join(self.tasksets)}; ask the operator to add it there"
            )
