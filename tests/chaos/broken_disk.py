"""A disk that fails: every way of writing below a folder raises while a switch is on."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.switches import Switches

_CHANGING = ("fsync", "fdatasync", "ftruncate", "mkdir", "rename", "replace", "write")
SWITCH = "disk"


def break_disk(switches: Switches, below: Path) -> None:
    """From now on this process writes below a folder only as the switch allows.

    The switch's value is "TOKEN ERRNO SKIP": so many writes still succeed, all later ones fail with
    that error, until it is off. A file's write that fails has written the first half.
    """
    fault = _Fault(switches)
    for name in _CHANGING:
        setattr(os, name, _checked(getattr(os, name), fault))
    opened = io.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wxa+") or not _is_below(file, below):
            return opened(file, mode, *args, **kwargs)
        fault.check()
        raw = _HalfWritten(file, mode.replace("b", "").replace("t", ""))
        raw.fault = fault
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

    io.open = builtins.open = open_file


def _checked(function: Callable[..., Any], fault: _Fault) -> Callable[..., Any]:
    def check_first(*args: Any, **kwargs: Any) -> Any:
        fault.check()
        return function(*args, **kwargs)

    return check_first


def _is_below(path: Any, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)


@dataclass
class _Fault:
    switches: Switches
    setting: str | None = None
    left: int = 0

    def check(self) -> None:
        """Count one write.

        Raises:
            OSError: if the switch says that it fails.
        """
        setting = self.switches.value(SWITCH)
        if setting is None:
            return
        _, name, skip = setting.split()
        if setting != self.setting:
            self.setting, self.left = setting, int(skip)
        self.left -= 1
        if self.left < 0:
            number = getattr(errno, name)
            raise OSError(number, os.strerror(number))


class _HalfWritten(io.FileIO):
    fault: _Fault

    def write(self, data: Any) -> int:
        try:
            self.fault.check()
        except OSError:
            super().write(memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2])
            raise
        return super().write(data)
