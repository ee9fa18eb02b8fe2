"""A process that has imported everything once, and of which others are forked within milliseconds.

``python -m tests.chaos.zygote MODULE`` imports MODULE, then obeys the lines on its standard input:
``start NUMBER PLACE`` forks a process that calls ``MODULE.live`` with the place, ``signal NUMBER
SIGNAL`` sends it a signal. It tells the end of each: ``ended NUMBER STATUS``.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import sys
import traceback
from types import ModuleType
from typing import NoReturn, TextIO

from services.chassis.parent import die_with_parent
from tests.chaos.seats import Place


def main() -> None:
    """Obey until standard input is closed; then end, and the children with it."""
    die_with_parent()
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an import prints is nobody's answer
    module = importlib.import_module(sys.argv[1])
    gc.freeze()  # a collection in a child would copy all it has inherited
    numbers: dict[int, int] = {}  # by process id
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    rest = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if sys.stdin.fileno() in ready:
            if not (read := os.read(sys.stdin.fileno(), 65536)):
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                _obey(line.decode(), module, numbers)
        if woken in ready:
            os.read(woken, 1024)
            _tell_ends(numbers, told)


def _obey(line: str, module: ModuleType, numbers: dict[int, int]) -> None:
    verb, number, argument = line.split(" ", 2)
    if verb == "start":
        place = Place.from_json(argument)
        pid = os.fork()
        if pid == 0:
            _live(module, place)
        numbers[pid] = int(number)
    for pid in [pid for pid, its_number in numbers.items() if its_number == int(number)]:
        if verb == "signal":
            os.kill(pid, int(argument))


def _live(module: ModuleType, place: Place) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(3, 256)
    status = 1
    try:
        module.live(place)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _tell_ends(numbers: dict[int, int], told: TextIO) -> None:
    while numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        print("ended", numbers.pop(pid), os.waitstatus_to_exitcode(status), file=told)


if __name__ == "__main__":
    main()
