"""The kinds of environments, by what the recipe names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from protocol.recipe import Environment

from services.chassis.faults import Unable
from services.environment import command
from services.environment.episodes import Play


@asynccontextmanager
async def opened(environment: Environment, runs_commands: bool) -> AsyncIterator[Play]:
    """An environment that is ready for episodes; `Unable` if it is none of this worker's."""
    if environment.command is not None:
        if not runs_commands:
            raise Unable(
                "environment.command is refused, since it runs a client's program on this "
                "machine; WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
            )
        yield partial(command.play, environment.command, environment.max_turns)
