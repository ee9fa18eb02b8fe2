"""A wall clock that a test can set: preloaded into a process whose time it tells."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_OFFSET = struct.Struct("<q")


@dataclass
class Clock:
    """Runs with the machine's clock, ahead of it or behind it."""

    library: Path
    file: Path
    offset_s: int = 0

    @classmethod
    def in_folder(cls, folder: Path) -> Clock | None:
        """A clock whose files are in a folder; none on a machine without a C compiler."""
        if shutil.which("cc") is None:
            return None
        clock = cls(folder / "clock.so", folder / "clock")
        command = ["cc", "-O1", "-shared", "-fPIC", str(_SOURCE), "-o", str(clock.library)]
        subprocess.run(command, check=True)
        clock.jump(0)
        return clock

    @property
    def environment(self) -> dict[str, str]:
        """For the process that is to have it."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_FILE": str(self.file)}

    def jump(self, seconds: int) -> None:
        """Set it forward, or back."""
        self.offset_s += seconds
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(_OFFSET.pack(self.offset_s))
