"""A disk that fails, or is slow, below a folder while a switch is on."""

from __future__ import annotations

import builtins
import errno
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.places import Switches

_WRITING = ("fsync", "mkdir", "rename", "replace", "truncate", "write")
_READING = ("listdir", "open", "scandir", "stat")


def break_disk(switches: Switches, below: Path) -> None:
    """From now on this process reads and writes below a folder only as the switch "disk" allows.

    Its value is "TOKEN ERRNO SKIP": so many calls still succeed, all later ones fail with that
    error until it is off. On a full disk only writing fails, as late as files are synced. On a disk
    that is "SLOW" nothing fails: each call takes SKIP milliseconds more.
    """
    disk = _Disk(switches, str(below))
    for name in (*_WRITING, *_READING):
        setattr(os, name, partial(disk.call, getattr(os, name), name in _READING))
    io.open = builtins.open = partial(disk.open, io.open)


@dataclass
class _Disk:
    switches: Switches
    below: str
    setting: str | None = None
    remaining: int = 0

    def call(self, function: Callable[..., Any], reads: bool, *args: Any, **kwargs: Any) -> Any:
        """Call a function of `os` with a path, or with the descriptor of a file."""
        if args and (isinstance(args[0], int) or self._has(args[0])):
            self._check(reads=reads)
        return function(*args, **kwargs)

    def open(
        self, opened: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> Any:
        if self._has(file):
            self._check(reads=not set(mode) & set("wxa+"))
        return opened(file, mode, *args, **kwargs)

    def _has(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.below)

    def _check(self, *, reads: bool) -> None:
        setting = self.switches.value("disk")
        if setting is None:
            return
        _, name, amount = setting.split()
        if name == "SLOW":
            time.sleep(int(amount) / 1000)
        elif not (reads and name == "ENOSPC"):
            if setting != self.setting:
                self.setting = setting
                self.remaining = int(amount)
            self.remaining -= 1
            if self.remaining < 0:
                number = getattr(errno, name)
                raise OSError(number, os.strerror(number))
