"""Standard output, written to without ever blocking the event loop."""

from __future__ import annotations

import os
import sys

from services.grader.offline.aside import Aside


class ReaderGone(RuntimeError):
    """Whoever read standard output has closed it: `head` does that."""


class StandardOutput:
    """What is written is out at once; a slow reader slows nothing down but the writer.

    Raises:
        OSError: if standard output was closed when the process began.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OSError("standard output is closed; it is where the verdicts go")
        self._fd = sys.stdout.fileno()
        self._aside = Aside()

    async def write(self, text: str) -> None:
        """Write all of a text.

        Raises:
            ReaderGone: if nobody reads it any more.
            OSError: if it cannot be written.
        """
        try:
            await self._aside.call(_write_all, self._fd, text.encode())
        except BrokenPipeError as error:
            raise ReaderGone from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
