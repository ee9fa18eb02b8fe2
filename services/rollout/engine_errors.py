"""The last error of vLLM's processes, which vLLM reports only in its log."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from pathlib import Path

# The engine's processes inherit this variable. It names the file of the last error.
_FILE = "ENGINE_LAST_WORDS"


class _ErrorRecorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _FILE in os.environ:
            Path(os.environ[_FILE]).write_text(f"{type(error).__name__}: {error}")


def record() -> None:
    """Record the errors that vLLM logs in this process and in those that it starts."""
    logging.getLogger("vllm").addHandler(_ErrorRecorder(logging.ERROR))


def reset() -> None:
    """Forget the last error, and name the file for processes that start from now on."""
    if _FILE not in os.environ:
        descriptor, os.environ[_FILE] = tempfile.mkstemp(prefix="weir-engine-")
        os.close(descriptor)
        atexit.register(Path(os.environ[_FILE]).unlink, missing_ok=True)
    Path(os.environ[_FILE]).write_text("")


def read_last() -> str:
    """Return the last recorded error, or an empty text."""
    path = Path(os.environ.get(_FILE, ""))
    return path.read_text() if path.is_file() else ""


def describe_death() -> str:
    return f"a process of the engine has ended: {read_last() or 'it logged no error; see its log'}"
