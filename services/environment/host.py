"""The host: the jailed process that loads an environment and plays episodes for its worker.

The worker opens a connection for each episode, and sends a line of JSON. The answer is a line with
the reward or the problem. When the worker closes the connection, the episode is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry
from services.environment import command, taskset
from services.environment.episodes import MAX_MESSAGE_CHARS, EpisodeBroken, Play
from services.environment.gateway_client import Session

Json = dict[str, Any]
# Takes a request, and returns the JSON of the answer.
Handler = Callable[[Json], Coroutine[Any, Any, str]]
# A line holds a task, whose size the gateway has checked.
MAX_LINE_BYTES = 1 << 26


async def serve(listener: socket.socket, settings: Json) -> None:
    """Load an environment, and play episodes until the worker ends this process."""
    environment = Environment.model_validate(settings["environment"])
    failure: Json = {}
    try:
        async with _open(environment, settings["may_run_programs"]) as play:
            await _serve_forever(listener, partial(_play, play))
    except RuntimeError as error:
        is_passing = not isinstance(error, UnsupportedEntry)
        failure = {"error": str(error), "is_passing": is_passing}
    except BaseException as error:  # a client's module may raise anything
        failure = {"error": _describe(error), "is_passing": False}

    async def fail(_request: object) -> str:
        return json.dumps(failure)

    await _serve_forever(listener, fail)


def _open(environment: Environment, may_run_programs: bool) -> AbstractAsyncContextManager[Play]:
    if environment.taskset is not None:
        return taskset.open_taskset(environment, may_run_programs=may_run_programs)
    program = environment.command or ()
    play = partial(command.play, program, environment.max_turns)
    return nullcontext(play)


async def _serve_forever(listener: socket.socket, handle: Handler) -> None:
    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        handling = asyncio.create_task(handle(request))
        closing = asyncio.create_task(reader.read())
        closing.add_done_callback(lambda _: handling.cancel())
        with suppress(asyncio.CancelledError):
            writer.write(f"{await handling}\n".encode())
        writer.close()

    server = await asyncio.start_unix_server(serve_connection, sock=listener, limit=MAX_LINE_BYTES)
    await server.serve_forever()


async def _play(play: Play, request: Json) -> str:
    if not request:  # the worker asks whether the environment is loaded
        return "{}"
    session = Session(request["url"], request["key"])
    try:
        task = Task.model_validate(request["task"])
        reward = await play(task, session, request["seed"])
        return json.dumps({"reward": reward})
    except EpisodeBroken as error:
        problem = {"problem": error.problem, "message": str(error)[:MAX_MESSAGE_CHARS]}
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a client's module may raise anything
        problem = {"problem": "episode_failed", "message": _describe(error)}
    return json.dumps(problem)


def _describe(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARS]
