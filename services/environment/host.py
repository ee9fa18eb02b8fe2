"""The process that plays episodes in a jail: it loads an environment, and answers its worker.

The worker makes a connection for each episode, and sends a line of JSON. The answer is a line, too:
the reward, or what broke. Nothing else leaves. A connection that it closes cancels the episode.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry
from services.environment import command, taskset
from services.environment.door import Session
from services.environment.episodes import MAX_WORDS, PROBLEMS, Broken, Play

Answer = Callable[[Mapping[str, Any]], Coroutine[Any, Any, bytes]]
MAX_LINE_BYTES = 1 << 26  # of a task, which its gateway has taken


async def serve(listener: socket.socket, settings: Mapping[str, Any]) -> None:
    """Load the environment of the settings, and play until the worker ends this process."""
    environment = Environment.model_validate(settings["environment"])
    failure: dict[str, Any] = {}
    try:
        async with _open(environment, settings["may_run_programs"]) as play:
            await _serve_forever(listener, partial(_answer, play))
    except RuntimeError as error:
        failure = {"error": str(error), "is_passing": not isinstance(error, UnsupportedEntry)}
    except BaseException as error:  # a client's module may raise anything
        failure = {"error": _words(error), "is_passing": False}
    await _serve_forever(listener, partial(_fail, failure))


def _open(environment: Environment, may_run_programs: bool) -> AbstractAsyncContextManager[Play]:
    if environment.taskset is not None:
        return taskset.open_taskset(environment, may_run_programs=may_run_programs)
    return nullcontext(partial(command.play, environment.command or (), environment.max_turns))


async def _serve_forever(listener: socket.socket, answer: Answer) -> None:
    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering = asyncio.create_task(answer(json.loads(await reader.readline())))
        leaving = asyncio.create_task(reader.read())
        leaving.add_done_callback(lambda _: answering.cancel())
        with suppress(asyncio.CancelledError):
            writer.write(await answering + b"\n")
        writer.close()

    server = await asyncio.start_unix_server(serve_one, sock=listener, limit=MAX_LINE_BYTES)
    await server.serve_forever()


async def _fail(failure: Mapping[str, Any], _request: object) -> bytes:
    return json.dumps(failure).encode()


async def _answer(play: Play, request: Mapping[str, Any]) -> bytes:
    if not request:  # whether the environment is loaded
        return b"{}"
    session = Session(request["url"], request["key"])
    try:
        task = Task.model_validate(request["task"])
        answer: Any = {"reward": await play(task, session, request["seed"])}
        return json.dumps(answer).encode()
    except Broken as broken:
        answer = {"problem": broken.problem, "words": broken.words[:MAX_WORDS]}
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a client's module may raise anything
        answer = {"problem": PROBLEMS[0], "words": _words(error)}
    return json.dumps(answer).encode()


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]
