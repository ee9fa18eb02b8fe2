"""An agent that is a program: it asks the policy over HTTP, and its last line is the reward."""

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
from services.environment.door import MODEL, Session
from services.environment.episodes import Broken

_MOST_BYTES = 2**16  # of what a program says, the last are kept
_LOOK_S = 0.2
_DRAIN_S = 1.0


async def play(
    command: Sequence[str], max_turns: int, task: Task, session: Session, seed: int
) -> float | None:
    """Run the command in a process group of its own; the reward that it says.

    What it leaves running may hold its pipes open, and ends soon after it.
    """
    told = {
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
        env=os.environ | told,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    said, complaint = bytearray(), bytearray()
    reading = asyncio.gather(_read(program.stdout, said), _read(program.stderr, complaint))
    try:
        while program.returncode is None and not reading.done():  # wait() waits for the pipes, too
            await asyncio.wait({reading}, timeout=_LOOK_S)
        await asyncio.wait({reading}, timeout=_DRAIN_S)
        status = await program.wait()
    finally:
        reading.cancel()
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    if status != 0:
        raise Broken("episode_failed", f"exit status {status}: {_last(complaint) or _last(said)}")
    return reward_in(_last(said))


async def _read(stream: asyncio.StreamReader, kept: bytearray) -> None:
    while read := await stream.read(_MOST_BYTES):
        kept += read
        del kept[:-_MOST_BYTES]


def _last(kept: bytearray) -> str:
    """The last line that is not blank."""
    lines = kept.decode(errors="replace").rstrip().splitlines()
    return lines[-1] if lines else ""


def reward_in(line: str) -> float | None:
    """A line's number, or that of its ``{"reward": …}``; `Broken` if it is neither."""
    try:
        found = json.loads(line)
        reward = found["reward"] if isinstance(found, dict) else found
        number = None if reward is None else float(reward)
    except (ValueError, TypeError, KeyError):
        number = math.nan
    if number is not None and not math.isfinite(number):
        wanted = 'a number or {"reward": a number}'
        raise Broken("no_reward", f"the last line must be {wanted}, but is {line[:200]!r}")
    return number
