"""What a policy may make a worker do: functions that hang, crash, or take all memory."""

import ctypes
import math
import os
import time

from services.grader import pool_worker


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


def blunder() -> None:
    raise ValueError("on purpose")


def unspeakable() -> object:
    return object()


def nap_and_tell(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def spin_unwatched() -> None:
    """As if the caller were stuck: only the limit on CPU time is left."""
    pool_worker._limit_cpu(-pool_worker._CPU_GRACE_S)
    spin()
