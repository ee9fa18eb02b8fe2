"""What a worker of the pool does: it answers one call after the other until its pipe is closed.

A call and its answer are JSON with a length before it; nothing is ever unpickled. The limits here
hold even when nobody watches: memory by RLIMIT_AS, a call's CPU time by RLIMIT_CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import resource
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_FRAME_BYTES = 16 << 20
PART_BYTES = 1 << 16  # read at once

_LENGTH = struct.Struct("<I")
_ENCODER = json.JSONEncoder(allow_nan=False)
_MAX_DETAIL_CHARS = 500
_CPU_GRACE_S = 2  # the caller's deadline comes first; this is for a caller that is stuck itself


class FrameError(ValueError):
    """Something too long for a frame, or bytes that are no frame."""


def as_frame(content: object) -> bytes:
    """JSON with its length before it, as four little-endian bytes.

    Raises:
        FrameError: over `MAX_FRAME_BYTES`.
        TypeError, ValueError, RecursionError: if it is not JSON.
    """
    payload = _ENCODER.encode(content).encode()
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"{len(payload)} bytes of JSON, over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


def payload_of(received: bytearray) -> bytes | None:
    """The JSON of a frame once it has been received in full; until then None.

    Raises:
        FrameError: if this is not the beginning of one frame and nothing else.
    """
    if len(received) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
    if len(received) > end or end > _LENGTH.size + MAX_FRAME_BYTES:
        raise FrameError(f"{len(received)} bytes received of a frame of {end}")
    return bytes(received[_LENGTH.size :]) if len(received) == end else None


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


def answer_until_closed(pipe: socket.socket) -> None:
    """Answer calls until the other end is closed."""
    while (payload := _read(pipe)) is not None:
        pipe.sendall(_answer(payload))


def _read(pipe: socket.socket) -> bytes | None:
    received = bytearray()
    while (payload := payload_of(received)) is None:
        part = pipe.recv(PART_BYTES)
        if not part:
            return None
        received += part
    return payload


def _answer(payload: bytes) -> bytes:
    call: dict[str, Any] = json.loads(payload)
    try:
        value = _called(**call)
        return as_frame({"number": call["number"], "value": value, "cpu_s": time.process_time()})
    except MemoryError:
        return _failed(call, "memory", "over the memory limit")
    except Exception as error:
        return _failed(call, "error", f"{type(error).__name__}: {error}"[:_MAX_DETAIL_CHARS])


def _called(number: int, function: str, args: list[Any], deadline_s: float) -> Any:
    _limit_cpu(deadline_s)
    return resolve(function)(*args)


def _failed(call: dict[str, Any], cause: str, detail: str) -> bytes:
    spent = {"number": call["number"], "cpu_s": time.process_time()}
    return as_frame({"failed": cause, "detail": detail, **spent})


def _limit_cpu(deadline_s: float) -> None:
    allowed = math.ceil(time.process_time() + deadline_s) + _CPU_GRACE_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = allowed if hard == resource.RLIM_INFINITY else min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
