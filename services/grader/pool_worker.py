"""What a worker of the pool does: it answers one call after the other until its pipe is closed.

A call and its answer are JSON with a length before it; nothing is ever unpickled. The limits here
hold even when nobody watches: memory by RLIMIT_AS, a call's CPU time by RLIMIT_CPU.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_MAX_DETAIL_CHARS = 500
_CPU_GRACE_S = 2  # the caller's deadline comes first; this is for a caller that is stuck itself


def as_frame(content: object) -> bytes:
    """JSON with its length before it, as four little-endian bytes."""
    payload = json.dumps(content).encode()
    return LENGTH.pack(len(payload)) + payload


def resolve(name: str) -> Callable[..., Any]:
    """The function called ``"package.module:function"``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies, even inside a long C call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def limit_memory(memory_bytes: int) -> None:
    """Make allocations beyond this fail, and crashes leave no core file."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer_until_closed(pipe: socket.socket) -> None:
    """Answer calls until the other end is closed."""
    while (call := _read(pipe)) is not None:
        pipe.sendall(_answer(**call))


def _read(pipe: socket.socket) -> dict[str, Any] | None:
    header = _read_exactly(pipe, LENGTH.size)
    payload = header and _read_exactly(pipe, *LENGTH.unpack(header))
    return json.loads(payload) if payload else None


def _read_exactly(pipe: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = pipe.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _answer(function: str, args: list[Any], deadline_s: float) -> bytes:
    _limit_cpu(deadline_s)
    try:
        return as_frame({"value": resolve(function)(*args)})
    except MemoryError:
        return as_frame({"failed": "memory", "detail": "over the memory limit"})
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL_CHARS]
        return as_frame({"failed": "error", "detail": detail})


def _limit_cpu(deadline_s: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    allowed = math.ceil(usage.ru_utime + usage.ru_stime + deadline_s) + _CPU_GRACE_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = allowed if hard == resource.RLIM_INFINITY else min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
