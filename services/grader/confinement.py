"""What keeps a client's code to itself, as far as this kernel and this user allow it.

A process that runs it has no variable of the deployment, no file to write, no process or thread to
start, and no more memory than it may. Where the kernel allows it has no network either; where the
grader is root it is nobody. It can read what its user can read: that is no wall.
"""

from __future__ import annotations

import ctypes
import os
import resource

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_NOBODY = 65534
_MAX_FILES = 64  # open at once
_KEPT = ("PATH", "LANG", "PYTHONPATH")


def bare_environment() -> dict[str, str]:
    """The variables that Python itself needs."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def keep_memory_private() -> None:
    """Let no other process of this user read this one's memory or environment."""
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_network() -> bool:
    """Have no network from now on, nor any process that is forked; False if that is not allowed."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    return _libc().unshare(flags) == 0


def lock_in() -> None:
    """Give up every right that code of a client does not need."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir("/")
    for limit, most in (
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MAX_FILES),
    ):
        resource.setrlimit(limit, (most, most))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
