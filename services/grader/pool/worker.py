"""What a worker does: it answers one call after the other until its connection is closed.

A call and its answer are a line of JSON each; nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY = b"ready\n"
MAX_LINE_BYTES = 16 << 20

_ENCODER = json.JSONEncoder(allow_nan=False)
_MAX_DETAIL_CHARS = 500


def as_line(content: object) -> bytes:
    """JSON in one line.

    Raises:
        TypeError, ValueError, RecursionError: if it is not JSON, or too much of it.
    """
    line = _ENCODER.encode(content).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} bytes of JSON, over the limit of {MAX_LINE_BYTES}")
    return line


def resolve(name: str) -> Callable[..., Any]:
    """The function called ``"package.module:function"``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def limit_memory(memory_bytes: int) -> None:
    """Make allocations beyond this fail, and crashes leave no core file.

    If the machine itself runs out of memory, a worker is what the kernel should kill.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # not every sandbox has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def answer_until_closed(connection: socket.socket) -> None:
    """Answer calls until the other end is closed."""
    for line in connection.makefile("rb"):
        connection.sendall(_answer(*json.loads(line)))


def _answer(number: int, function: str, args: list[Any]) -> bytes:
    try:
        return _told(number, value=resolve(function)(*args))
    except MemoryError:
        return _told(number, failed="memory", detail="over the memory limit")
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL_CHARS]
        return _told(number, failed="error", detail=detail)


def _told(number: int, **what: Any) -> bytes:
    return as_line({"number": number, "cpu_s": time.process_time(), **what})
