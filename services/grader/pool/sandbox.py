"""A client's ``grade(sample, item)``, and what keeps it to itself, as far as kernel and user allow.

A process that runs it has no variable of the deployment, writes nothing into files, starts no
process and no thread, has no more memory than it may, has no capability, and is traced by no other
such process. Where the grader is root it is nobody, with keyrings of its own. Where the kernel has
Landlock it reads nothing but Python's own files, connects to nobody (6.7), and signals nobody
(6.12). Where unshare is allowed, as it is to root, it has no network and its own System V memory.
"""

from __future__ import annotations

import ctypes
import importlib
import linecache
import math
import os
import platform
import resource
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

WARM_UP = "services.grader.pool.sandbox:warm_up"
GRADE = "services.grader.pool.sandbox:grade"
_FILE = "source"
_MAX_CHARS = 2_000  # of an error
_UNREADABLE = (
    "the grader's sandbox cannot read Python's modules; its operator must install Weir and Python "
    "where every user may read, not below a private home folder\n"
)
_OFTEN_USED = ("collections", "datetime", "decimal", "difflib", "fractions", "itertools", "json")
_OFTEN_USED += ("math", "random", "rapidfuzz", "re", "statistics", "string", "unicodedata")
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITIES_V3, _MAX_CAPABILITIES = 0x20080522, 64
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # of Landlock
_ABI, _BENEATH = 1, 1
_ALL_OF_FILES, _ALL_OF_TCP, _ALL_SCOPES = (1 << 13) - 1, 0b11, 0b11
_TO_READ = 1 << 2 | 1 << 3  # files, folders
_LIBRARIES = ("/usr/lib", "/lib", "/lib64")  # which Python's modules load
_KEYCTL, _JOIN_SESSION = {"x86_64": 250, "aarch64": 219}, 1
_NOBODY = 65534
_MAX_FILES = 64  # open at once


def warm_up() -> None:
    for name in _OFTEN_USED:  # a worker lives for one call
        importlib.import_module(name)


def grade(source: str, sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What the source's function says of a sample: its ``value`` as a number, or an ``error``."""
    names: dict[str, Any] = {"__name__": "grader"}
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    try:
        exec(compile(source, _FILE, "exec"), names)
        value = names["grade"](sample, item)
        if not isinstance(value, int | float):
            return {"error": f"grade returned {type(value).__name__}, which is no number"}
        if not math.isfinite(value):
            return {"error": f"grade returned {value}, which is no finite number"}
        return {"value": float(value)}
    except MemoryError:
        raise
    except BaseException as error:
        return {"error": _told(error)[-_MAX_CHARS:]}


def _told(error: BaseException) -> str:
    """The error, and where in the source it was; no place on this machine."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame[0] == _FILE]
    told = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    if isinstance(error, ImportError) and not can_read_python():
        told.append(_UNREADABLE)
    return "".join(told)


def keep_memory_private() -> None:
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_network() -> bool:
    """Have no network from now on, nor any process that is forked; False if that is not allowed."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    return _libc().unshare(flags) == 0


def can_read_python() -> bool:
    return all(os.access(folder, os.R_OK | os.X_OK) for folder in _folders_of_python())


def lock_in() -> None:
    libc = _libc()
    libc.unshare(_CLONE_NEWIPC)
    libc.syscall(_KEYCTL.get(platform.machine(), -1), _JOIN_SESSION, None)  # a new keyring's
    _give_up_capabilities()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    if libc.unshare(_CLONE_NEWUSER) == 0:  # of its own, as keyrings are; it makes no other
        _give_up_capabilities()
        with suppress(OSError):
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the log is the service's
        os.dup2(nothing, stream)
    _read_only_python()
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_FILES, _MAX_FILES))
    # A new user namespace gives all capabilities: effective, permitted, inheritable, in two halves.
    if libc.capset(struct.pack("=Ii", _CAPABILITIES_V3, 0), bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    keep_memory_private()


def _read_only_python() -> None:
    """Open no file but those of Python and its libraries, to read; as far as the kernel can do it.

    See https://docs.kernel.org/userspace-api/landlock.html.
    """
    libc = _libc()
    version = libc.syscall(_CREATE_RULESET, None, 0, _ABI)
    if version < 1:
        return
    rights = struct.pack("=QQQ", _ALL_OF_FILES, _ALL_OF_TCP, _ALL_SCOPES)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, rights[:size], size, 0)
    for folder in {*_folders_of_python(), *_LIBRARIES}:
        with suppress(OSError):  # nobody may not see it either
            fd = os.open(folder, os.O_PATH)
            libc.syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", _TO_READ, fd), 0)
            os.close(fd)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _give_up_capabilities() -> None:
    libc = _libc()
    for capability in range(_MAX_CAPABILITIES):  # fails where there is none to give up
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _folders_of_python() -> tuple[str, str]:
    return f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
