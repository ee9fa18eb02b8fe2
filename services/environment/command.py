"""An agent that is a program: it calls the policy over HTTP, and prints its reward last."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from protocol.messages import Task

from services.chassis.parent import die_with_parent
from services.environment.episodes import EpisodeBroken
from services.environment.gateway_client import MODEL, Session

# The last bytes of each output stream are kept.
_MAX_OUTPUT_BYTES = 2**16
_POLL_S = 0.2
_DRAIN_TIMEOUT_S = 1.0


async def play(
    command: Sequence[str], max_turns: int, task: Task, session: Session, seed: int
) -> float | None:
    """Run the command in its own process group, and return the reward that it prints.

    Processes that it leaves running may hold its pipes open; they are killed.
    """
    variables = {
        "OPENAI_BASE_URL": f"{session.url}/v1",
        "OPENAI_API_KEY": session.key,
        "OPENAI_MODEL": MODEL,
        "WEIR_TASK": task.model_dump_json(exclude_none=True),
        "WEIR_SEED": str(seed),
        "WEIR_MAX_TURNS": str(max_turns),
    }
    program = await asyncio.create_subprocess_exec(
        *command,
        preexec_fn=partial(die_with_parent, os.getpid()),
        env=os.environ | variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    output = bytearray()
    errors = bytearray()
    reading = asyncio.gather(_read(program.stdout, output), _read(program.stderr, errors))
    try:
        # `Process.wait` also waits for the pipes, which other processes may hold open.
        while program.returncode is None and not reading.done():
            await asyncio.wait({reading}, timeout=_POLL_S)
        await asyncio.wait({reading}, timeout=_DRAIN_TIMEOUT_S)
        status = await program.wait()
    finally:
        reading.cancel()
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    if status != 0:
        message = f"exit status {status}: {_last_line(errors) or _last_line(output)}"
        raise EpisodeBroken("episode_failed", message)
    return parse_reward(_last_line(output))


async def _read(stream: asyncio.StreamReader, buffer: bytearray) -> None:
    while chunk := await stream.read(_MAX_OUTPUT_BYTES):
        buffer += chunk
        del buffer[:-_MAX_OUTPUT_BYTES]


def _last_line(output: bytearray) -> str:
    """Return the last line that is not blank."""
    lines = output.decode(errors="replace").rstrip().splitlines()
    return lines[-1] if lines else ""


def parse_reward(line: str) -> float | None:
    """Return the reward of a line that is a number or ``{"reward": NUMBER or null}``.

    Raises:
        EpisodeBroken: if it is neither.
    """
    try:
        value = json.loads(line)
        reward = value["reward"] if isinstance(value, dict) else value
        number = None if reward is None else float(reward)
    except (ValueError, TypeError, KeyError):
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise EpisodeBroken(
            "no_reward",
            f'the last line must be a number or {{"reward": a number}}, but is {line[:200]!r}',
        )
    return number
