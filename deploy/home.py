"""The folder of a stack, WEIR_HOME: who lives there, and what the ``weir`` command finds there.

Every process that a stack's supervisor starts holds the same lock on the folder, by inheritance, so
a stack is gone when the lock is free, however its processes ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.processes import STOP_TIMEOUT_S, StackError, say, stop_timeout_s

_MEMORY = "/dev/shm"


class Home:
    """One stack's folder."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self.lock = -1  # its file descriptor, while this process holds it

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Home:
        """The folder that WEIR_HOME names."""
        return cls(Path(environment.get("WEIR_HOME", ".weir")).absolute())

    def take(self) -> None:
        """Become the only stack here, once the processes of one that was killed have left.

        Raises:
            StackError: if a stack runs here.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        began = self._clock()
        while not self._try_to_lock():
            if (process_id := self._supervisor()) is not None:
                raise StackError(
                    f"a stack runs here already (process {process_id}); stop it with `weir down`, "
                    "or set WEIR_HOME to another folder"
                )
            if self._clock() - began > stop_timeout_s(self.path / "data"):
                self._kill_what_is_left()
            time.sleep(0.1)
        self.forget()  # what a killed stack has left
        self._pid_path.write_text(str(os.getpid()), encoding="utf-8")

    def vacate(self) -> bool:
        """Tell the stack that runs here to stop, and wait until all of it has; False if none."""
        if not self._lock_path.exists() or self._try_to_lock():
            return False
        told: int | None = None
        began = self._clock()
        while not self._try_to_lock():
            process_id = self._supervisor()
            if process_id is not None and process_id != told:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(process_id, signal.SIGTERM)
                told = process_id
            # The services leave, then their server.
            if self._clock() - began > stop_timeout_s(self.path / "data") + 2 * STOP_TIMEOUT_S:
                self._kill_what_is_left()
            time.sleep(0.1)
        return True

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Write stack.json, by which the ``weir`` command finds the gateway."""
        path = self.path / "stack.json"
        _write(path, json.dumps({**facts, "pid": os.getpid()}, indent=1))
        say(f"Weir is up at {facts['url']} (key in {path}); logs in {self.path / 'logs'}")

    def forget(self) -> None:
        """Take stack.json away."""
        (self.path / "stack.json").unlink(missing_ok=True)

    def api_keys(self, environment: Mapping[str, str]) -> tuple[str, str]:
        """The gateway's keys, and the one of them that the ``weir`` command uses here.

        The keys are WEIR_API_KEYS, or the file of WEIR_API_KEYS_FILE. Where none of them is there
        in plain text, one that is made once is added.

        Raises:
            StackError: if that file cannot be read.
        """
        keys = environment.get("WEIR_API_KEYS") or ""
        if not keys and (file := environment.get("WEIR_API_KEYS_FILE")):
            try:
                keys = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise StackError(f"WEIR_API_KEYS_FILE={file!r} cannot be read: {error}") from error
        if plain := _first_plain(keys):
            return keys, plain
        path = self.path / "api_key"
        if not path.exists():
            _write(path, f"weir-{secrets.token_urlsafe(24)}")
        own = path.read_text(encoding="utf-8")
        return f"{keys},{own}" if keys else own, own

    def memory(self, environment: Mapping[str, str]) -> Path:
        """This stack's own folder below WEIR_MEMORY_DIR; with no memory to write to, a disk's."""
        root = environment.get("WEIR_MEMORY_DIR") or (
            _MEMORY if os.access(_MEMORY, os.W_OK) else ""
        )
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
        return Path(root) / f"weir-{name}" if root else self.path / "data" / "weights"

    def _kill_what_is_left(self) -> None:
        """Kill who holds the lock: a supervisor that hangs, or what one has left behind.

        Without their Redis, services wait two minutes for it before they leave.
        """
        for process_id in filter(str.isdecimal, os.listdir("/proc")):
            if _has_open(process_id, self._lock_path.resolve()):
                say(f"killing process {process_id}, which holds {self._lock_path}")
                with suppress(ProcessLookupError):
                    os.kill(int(process_id), signal.SIGKILL)

    @property
    def _lock_path(self) -> Path:
        return self.path / "lock"

    @property
    def _pid_path(self) -> Path:
        return self.path / "supervisor.pid"

    def _try_to_lock(self) -> bool:
        self.lock = _lock(self._lock_path)
        return self.lock >= 0

    def _supervisor(self) -> int | None:
        """The process that runs the stack; None if it has ended, whatever it has left behind."""
        with suppress(OSError):
            process_id = self._pid_path.read_text(encoding="utf-8")
            # Its number may be somebody else's by now, who has not the lock's file open.
            if process_id.isdecimal() and _has_open(process_id, self._lock_path.resolve()):
                return int(process_id)
        return None


def _first_plain(keys: str) -> str:
    """One of the keys of a list that is no hash, and has no colon."""
    entries = map(str.strip, re.split("[,\n]", keys))
    return next((entry for entry in entries if entry and ":" not in entry), "")


def _write(path: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _has_open(process_id: str, file: Path) -> bool:
    """Whether a process has a file open; False if it has ended, or is somebody else's."""
    links = f"/proc/{process_id}/fd"
    with suppress(OSError):
        for descriptor in os.listdir(links):
            with suppress(FileNotFoundError):  # it has just been closed
                if os.readlink(f"{links}/{descriptor}") == str(file):
                    return True
    return False


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of a file; -1 if someone else does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    return descriptor
