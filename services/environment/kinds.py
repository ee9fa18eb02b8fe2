"""The kinds of environments, by what the recipe names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from protocol.recipe import Environment

from services.chassis.faults import Unable
from services.environment import command, openenv, taskset
from services.environment.episodes import Play


@asynccontextmanager
async def opened(environment: Environment, runs_commands: bool) -> AsyncIterator[Play]:
    """An environment that is ready for episodes; `Unable` if it is none of this worker's."""
    if not runs_commands and (why := _program_of(environment)):
        raise Unable(
            f"{why} is refused, since it may run a client's program on this machine; "
            "WEIR_ENVIRONMENT_COMMANDS=on of the environment workers allows it"
        )
    if environment.taskset is not None:
        async with taskset.opened(environment) as play:
            yield play
    elif environment.url is not None:
        async with openenv.opened(environment) as play:
            yield play
    else:
        yield partial(command.play, environment.command or (), environment.max_turns)


def _program_of(environment: Environment) -> str:
    """The field that may name a program: a command, or settings of a taskset's parts."""
    if environment.command is not None:
        return "environment.command"
    if environment.taskset is not None:  # of rewards, harnesses and runtimes, for one
        for name, value in environment.settings.items():
            if isinstance(value, dict | list):
                return f"environment.settings.{name}, a table,"
    return ""
