"""A sandbox for clients' code, as tight as kernel and user allow.

A process in it has no variable of the deployment, writes no file, starts no process or thread, has
a memory limit and no capability, and cannot be traced by another such process. If the service is
root, it runs as nobody with its own keyrings. If the kernel has Landlock, it reads only Python's
own files, makes no TCP connection (6.7), and sends no signal (6.12). If unshare is allowed, as for
root, it has no network and its own System V memory.
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

# unshare(2), prctl(2), capset(2)
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_V3 = 0x20080522
_MAX_CAPABILITIES = 64
# landlock(7)
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_GET_ABI_VERSION = 1
_PATH_BENEATH = 1
_FILE_RIGHTS = 0b111 | 1 << 14  # the rights that exist for a file that is no folder
_TCP_RIGHTS = 0b11
_ALL_SCOPES = 0b11
_EXECUTE = 1 << 0
_READ = 1 << 2 | 1 << 3  # files and folders
_LIBRARIES = ("/usr/lib", "/lib", "/lib64")  # Python's modules load them
# seccomp(2)
_FORBIDDEN_CALLS = (
    "ptrace process_vm_readv process_vm_writev unshare setns mount open_by_handle_at pidfd_getfd "
    "bpf perf_event_open userfaultfd io_uring_setup add_key request_key keyctl"
)
_ALLOW = 0x7FFF0000
_REFUSE = 0x50000 | errno.EPERM
_UNKNOWN = 0x50000 | errno.ENOSYS
_LIBSECCOMP = "libseccomp.so.2"
_BAD_ARCHITECTURE = 2  # the filter's attribute for calls of another architecture
_MASKED_EQUAL = 7
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION = 1
_NOBODY = 65534
_MAX_OPEN_FILES = 64


def keep_memory_private() -> None:
    c_library().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_network() -> bool:
    """Leave the network, also for processes forked later; False if that is not allowed."""
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    return c_library().unshare(flags) == 0


def has_call_filter() -> bool:
    try:
        return bool(ctypes.CDLL(_LIBSECCOMP))
    except OSError:
        return False


def can_read_python() -> bool:
    return all(os.access(folder, os.R_OK | os.X_OK) for folder in _python_folders())


def enter_sandbox() -> None:
    libc = c_library()
    libc.unshare(_CLONE_NEWIPC)
    become_nobody()
    if libc.unshare(_CLONE_NEWUSER) == 0:  # keyrings belong to it; it can make no other
        give_up_capabilities()
        with suppress(OSError):
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    restrict_files({*_python_folders(), *_LIBRARIES})
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN_FILES, _MAX_OPEN_FILES))
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
    """Allow only these files and no TCP from now on; False if the kernel has no Landlock.

    See https://docs.kernel.org/userspace-api/landlock.html.
    """
    libc = c_library()
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = libc.syscall(_CREATE_RULESET, None, 0, _GET_ABI_VERSION)
    if version < 1:
        return False
    all_rights = (1 << min(12 + version, 15)) - 1  # as far as this version has them
    rights = struct.pack("=QQQ", all_rights, 0 if has_network else _TCP_RIGHTS, _ALL_SCOPES)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, rights[:size], size, 0)
    read_rights = _READ | (_EXECUTE if may_run_programs else 0)
    permissions = dict.fromkeys(readable, read_rights) | dict.fromkeys(writable, all_rights)
    for path, permission in permissions.items():
        with suppress(OSError):  # the user "nobody" may not see it either
            fd = os.open(path, os.O_PATH)
            is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
            possible = all_rights if is_folder else all_rights & _FILE_RIGHTS
            rule = struct.pack("=Qi", permission & possible, fd)
            libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
            os.close(fd)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)
    return True


class _Comparison(ctypes.Structure):
    """``scmp_arg_cmp``: compares an argument, masked, with a value."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def forbid_calls(*, may_run_programs: bool) -> None:
    """Refuse the system calls that leave a sandbox, and perhaps those that start programs.

    See seccomp_rule_add(3).

    Raises:
        OSError: if libseccomp or the kernel's filter is missing.
    """
    library = ctypes.CDLL(_LIBSECCOMP)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    library.seccomp_attr_set(rules, _BAD_ARCHITECTURE, _REFUSE)
    names = _FORBIDDEN_CALLS + ("" if may_run_programs else " execve execveat")
    # The flags of clone3 cannot be seen; libraries then use clone.
    actions = {**dict.fromkeys(names.split(), _REFUSE), "clone": _REFUSE, "clone3": _UNKNOWN}
    user_namespace = _Comparison(0, _MASKED_EQUAL, _CLONE_NEWUSER, _CLONE_NEWUSER)
    for name, action in actions.items():
        number = library.seccomp_syscall_resolve_name(name.encode())
        num_comparisons = int(name == "clone")
        comparisons = ctypes.byref(user_namespace)
        if library.seccomp_rule_add_array(rules, action, number, num_comparisons, comparisons) != 0:
            raise OSError(errno.ENOSYS, f"libseccomp knows no {name}")
    status = library.seccomp_load(rules)
    if status != 0:
        raise OSError(-status, "seccomp")
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
    """Let the kernel kill this process first if memory is short, and write no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # /proc may be missing
        Path("/proc/self/oom_score_adj").write_text("1000")


def drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
    empty_sets = bytes(24)  # three sets of 64 bits
    if c_library().capset(header, empty_sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def give_up_capabilities() -> None:
    libc = c_library()
    for capability in range(_MAX_CAPABILITIES):  # fails for numbers that do not exist
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _python_folders() -> tuple[str, str]:
    return f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"


def c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
