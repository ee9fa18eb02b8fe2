"""The last error and the last line of the log of vLLM's processes, which vLLM only logs."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

# The engine's processes inherit this variable. It names a folder with a file for each text.
_FOLDER = "ENGINE_LAST_WORDS"
_ERROR = "error"
_LINE = "line"


class _Recorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._record(record)
        except Exception:
            self.handleError(record)

    def _record(self, record: logging.LogRecord) -> None:
        _write(_LINE, record.getMessage().strip().rpartition("\n")[2])
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            _write(_ERROR, f"{type(error).__name__}: {error}")


def record() -> None:
    """Record what vLLM logs in this process and in those that it starts."""
    logging.getLogger("vllm").addHandler(_Recorder())


def reset() -> None:
    """Forget the last texts, and name the folder for processes that start from now on."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="weir-engine-")
        atexit.register(shutil.rmtree, os.environ[_FOLDER], ignore_errors=True)
    _write(_ERROR, "")
    _write(_LINE, "")


def read_last() -> str:
    """Return the last recorded error, or an empty text."""
    return _read(_ERROR)


def read_line() -> str:
    """Return the last line of the log, or an empty text."""
    return _read(_LINE)


def describe_death() -> str:
    return f"a process of the engine has ended: {read_last() or 'it logged no error; see its log'}"


def _write(name: str, text: str) -> None:
    # The folder goes with the service, and a full disk must not end the engine.
    with suppress(KeyError, OSError):
        Path(os.environ[_FOLDER], name).write_text(text)


def _read(name: str) -> str:
    path = Path(os.environ.get(_FOLDER, ""), name)
    return path.read_text() if path.is_file() else ""
