"""Keep a client's code to itself, as far as kernel and user allow.

A process that runs it has no variable of the deployment, writes nothing into files, starts no
process and no thread, has no more memory than it may, has no capability, and is traced by no other
such process. Where the service is root it is nobody, with keyrings of its own. Where the kernel has
Landlock it reads nothing but Python's own files, connects to nobody (6.7), and signals nobody
(6.12). Where unshare is allowed, as it is to root, it has no network and its own System V memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITIES_V3, _MAX_CAPABILITIES = 0x20080522, 64
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # of Landlock
_ABI, _BENEATH = 1, 1
_OF_A_FILE = 0b111 | 1 << 14  # what may be done to something that is no folder
_ALL_OF_TCP, _ALL_SCOPES = 0b11, 0b11
_RUN, _TO_READ = 1 << 0, 1 << 2 | 1 << 3  # programs; files and folders
_LIBRARIES = ("/usr/lib", "/lib", "/lib64")  # which Python's modules load
_CALLS_OUT = (
    "ptrace process_vm_readv process_vm_writev unshare setns mount open_by_handle_at pidfd_getfd "
    "bpf perf_event_open userfaultfd io_uring_setup add_key request_key keyctl"
)
_ALLOW, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
_LIBSECCOMP = "libseccomp.so.2"
_OF_OTHER_MACHINES, _MASKED_EQUAL = 2, 7  # an attribute of a filter, and an operator
_KEYCTL, _JOIN_SESSION = {"x86_64": 250, "aarch64": 219}, 1
_NOBODY = 65534
_MAX_FILES = 64  # open at once


def keep_memory_private() -> None:
    c_library().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_network() -> bool:
    """Have no network from now on, nor any process that is forked; False if that is not allowed."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    return c_library().unshare(flags) == 0


def has_call_filter() -> bool:
    """Whether this machine has libseccomp, with which calls are forbidden."""
    try:
        return bool(ctypes.CDLL(_LIBSECCOMP))
    except OSError:
        return False


def can_read_python() -> bool:
    return all(os.access(folder, os.R_OK | os.X_OK) for folder in _folders_of_python())


def lock_in() -> None:
    libc = c_library()
    libc.unshare(_CLONE_NEWIPC)
    become_nobody()
    if libc.unshare(_CLONE_NEWUSER) == 0:  # of its own, as keyrings are; it makes no other
        give_up_capabilities()
        with suppress(OSError):
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the log is the service's
        os.dup2(nothing, stream)
    restrict_files({*_folders_of_python(), *_LIBRARIES})
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_FILES, _MAX_FILES))
    # A new user namespace gives all capabilities.
    drop_capabilities()
    with suppress(OSError):
        forbid_calls(may_run_programs=False)
    keep_memory_private()


def restrict_files(
    readable: Iterable[str],
    writable: Iterable[str] = (),
    *,
    may_run_programs: bool = False,
    has_network: bool = False,
) -> bool:
    """Open no other file from now on, and by TCP nobody; False if the kernel has no Landlock.

    See https://docs.kernel.org/userspace-api/landlock.html.
    """
    libc = c_library()
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = libc.syscall(_CREATE_RULESET, None, 0, _ABI)
    if version < 1:
        return False
    files = (1 << min(12 + version, 15)) - 1  # all rights that this version knows
    rights = struct.pack("=QQQ", files, 0 if has_network else _ALL_OF_TCP, _ALL_SCOPES)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, rights[:size], size, 0)
    reading = _TO_READ | (_RUN if may_run_programs else 0)
    permissions = dict.fromkeys(readable, reading) | dict.fromkeys(writable, files)
    for path, permission in permissions.items():
        with suppress(OSError):  # nobody may not see it either
            fd = os.open(path, os.O_PATH)
            possible = files if stat.S_ISDIR(os.fstat(fd).st_mode) else files & _OF_A_FILE
            rule = struct.pack("=Qi", permission & possible, fd)
            libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, 0)
            os.close(fd)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)
    return True


class _Comparison(ctypes.Structure):
    """Of an argument, masked, with a value: ``scmp_arg_cmp``."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def forbid_calls(*, may_run_programs: bool) -> None:
    """Refuse the system calls by which a sandbox is left, and perhaps those that start programs.

    See seccomp_rule_add(3).

    Raises:
        OSError: if this machine has no libseccomp, or its kernel no such filter.
    """
    library = ctypes.CDLL(_LIBSECCOMP)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    library.seccomp_attr_set(rules, _OF_OTHER_MACHINES, _REFUSE)
    names = _CALLS_OUT if may_run_programs else f"{_CALLS_OUT} execve execveat"
    # The flags of clone3 cannot be seen; libraries then use clone.
    actions = {**dict.fromkeys(names.split(), _REFUSE), "clone": _REFUSE, "clone3": _UNKNOWN}
    user_namespace = _Comparison(0, _MASKED_EQUAL, _CLONE_NEWUSER, _CLONE_NEWUSER)
    for name, action in actions.items():
        number = library.seccomp_syscall_resolve_name(name.encode())
        compared = (int(name == "clone"), ctypes.byref(user_namespace))
        if library.seccomp_rule_add_array(rules, action, number, *compared) != 0:
            raise OSError(errno.ENOSYS, f"libseccomp knows no {name}")
    if (problem := library.seccomp_load(rules)) != 0:
        raise OSError(-problem, "seccomp")
    library.seccomp_release(rules)


def become_nobody() -> None:
    """Give up root's rights, and the keyrings of this session."""
    c_library().syscall(_KEYCTL.get(platform.machine(), -1), _JOIN_SESSION, None)
    give_up_capabilities()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def be_killed_first() -> None:
    """Have the kernel kill this process before others if memory is short, and keep no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not every sandbox has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def drop_capabilities() -> None:
    header, none = struct.pack("=Ii", _CAPABILITIES_V3, 0), bytes(24)  # of three sets, two halves
    if c_library().capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def give_up_capabilities() -> None:
    libc = c_library()
    for capability in range(_MAX_CAPABILITIES):  # fails where there is none to give up
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _folders_of_python() -> tuple[str, str]:
    return f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"


def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
