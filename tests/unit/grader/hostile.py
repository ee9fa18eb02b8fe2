"""Functions that hang, crash, take all memory, or spoil the pipe of their worker."""

import ctypes
import math
import os
import signal
import socket
import time
from pathlib import Path

_texts: list[str] = []


def burn_nothing() -> None:
    pass


def keep(text: str) -> None:
    _texts.append(text)


def read_texts() -> list:
    """Return the texts of the set-up, this process and its key."""
    return [*_texts, os.getpid(), os.getenv("WEIR_API_KEYS")]


def spin() -> None:
    while True:
        pass


def hang_in_c() -> int:
    return math.factorial(10**8)


def segfault() -> None:
    ctypes.string_at(0)


def vanish() -> None:
    os._exit(3)


def hoard() -> int:
    return len(bytearray(8 << 30))


def wait_until_exists(path: str) -> int:
    """An honest call, which waits until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()


def nap_and_tell(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def meet(folder: str, number: int) -> int:
    """An honest call, which waits until so many have begun."""
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < number:
        time.sleep(0.002)
    return os.getpid()


def note_and_return(book: str, number: int, seconds: float) -> list[int]:
    """An honest call, which leaves a line in a book each time it is made."""
    with Path(book).open("a") as lines:
        lines.write(f"{number}\n")
    time.sleep(seconds)
    return [number]


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def send_itself(signal_name: str) -> None:
    os.kill(os.getpid(), signal.Signals[signal_name])
    time.sleep(9)


def nest(depth: int) -> list:
    nested: list = []
    for _ in range(depth):
        nested = [nested]
    return nested


def scribble(hexadecimal: str, signal_name: str = "") -> str:
    """Bytes of its own into the pipe, before the answer or its end."""
    os.write(_pipe(), bytes.fromhex(hexadecimal))
    if signal_name:
        send_itself(signal_name)
    return "truth"


def close_pipe(stay_s: float) -> None:
    os.close(_pipe())
    time.sleep(stay_s)


def hang_up() -> None:
    socket.socket(fileno=_pipe()).shutdown(socket.SHUT_WR)


def _pipe() -> int:
    links = {fd: f"/proc/self/fd/{fd}" for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2}
    files = {fd: os.readlink(link) for fd, link in links.items() if os.path.lexists(link)}
    (pipe,) = (fd for fd, file in files.items() if file.startswith("socket"))  # no other worker's
    return pipe
