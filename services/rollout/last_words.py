"""The last error of an engine's processes, which vLLM tells in its log alone."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from pathlib import Path

_FILE = "ENGINE_LAST_WORDS"  # a variable that the engine's processes inherit


class _Keeper(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _FILE in os.environ:
            Path(os.environ[_FILE]).write_text(f"{type(error).__name__}: {error}")


def keep() -> None:
    """Have this process, and those that it starts, note the errors that vLLM logs."""
    logging.getLogger("vllm").addHandler(_Keeper(logging.ERROR))


def listen() -> None:
    """Forget what was noted, and say where the processes are to note it that start from now on."""
    if _FILE not in os.environ:
        number, os.environ[_FILE] = tempfile.mkstemp(prefix="weir-engine-")
        os.close(number)
        atexit.register(Path(os.environ[_FILE]).unlink, missing_ok=True)
    Path(os.environ[_FILE]).write_text("")


def said() -> str:
    """The error that was noted last; empty without one."""
    path = Path(os.environ.get(_FILE, ""))
    return path.read_text() if path.is_file() else ""


def ended() -> str:
    return f"a process of the engine has ended: {said() or 'it left no word; see its log'}"
