"""Processes that begin in milliseconds: children of one that has imported everything."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import forkserver, get_context
from unittest.mock import patch

from tests.chaos.seats import Place

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.chaos.services"])


def warm_up() -> None:
    """Start the process that the others are forked from; its imports take seconds, once."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1"):
        forkserver.ensure_running()


class Life:
    """One life on a seat, from its fork to its end."""

    def __init__(self, place: Place) -> None:
        self.process = _context.Process(target=_live, args=(place,), daemon=True)
        self.process.start()
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.process.sentinel, self._note_end)

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def ask_to_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, signum: signal.Signals) -> None:
        """The process is not reaped before its end is noted, so its id is nobody else's."""
        if not self.ended.is_set() and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signum)

    def _note_end(self) -> None:
        self._loop.remove_reader(self.process.sentinel)
        self.process.join()
        self.ended.set()


def _live(place: Place) -> None:
    from tests.chaos.services import live  # which has been imported before the fork

    live(place)
