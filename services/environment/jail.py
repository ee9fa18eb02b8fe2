"""The jail: a process that runs clients' programs and data, sees little, and can do little harm.

As root, and as others where user namespaces are allowed (seldom in a container), it has its own
user, processes, network and file system. Everywhere Landlock limits the files that it opens, and
seccomp refuses the system calls that leave a jail. Its only way out is a listener, whose
connections the worker accepts.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from services.chassis.parent import die_with_parent
from services.chassis.pool import sandbox

# From sched.h.
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
# From sys/mount.h.
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt")
_ETC = (
    "ssl ca-certificates alternatives ld.so.cache passwd group hosts nsswitch.conf localtime "
    "mime.types"
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SCRATCH = ("/tmp", "/dev/shm")
_SCRATCH_BYTES = 2 << 30
_MAX_PROCESSES = 4096
_BACKLOG = 256
# The folder of docker-compose.yml's secrets.
_SECRETS = "secrets"


def enter(worker: socket.socket, hidden: Sequence[str], *, may_run_programs: bool) -> None:
    """Continue in a jail; the calling process and another one wait for it outside.

    Sends ``worker`` the jail's listener with a byte; only the byte if it has no own network.

    Raises:
        OSError: if this machine allows neither namespaces nor Landlock.
    """
    hidden = [os.path.realpath(path) for path in hidden]
    paths: list[str] = []
    for path in dict.fromkeys(_visible_paths()):
        paths += _visible_parts(path, hidden)
    has_namespaces = _enter_namespaces()
    if has_namespaces:
        with _listen() as listener:
            proxy = "http://{}:{}".format(*listener.getsockname())
            os.environ |= {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": "127.0.0.1"}
            socket.send_fds(worker, [b"."], [listener.fileno()])
        root = _make_root(paths)
        _continue_in_child()
        _enter_root(root)
    else:
        worker.send(b".")
    _continue_in_child()
    _drop_rights(paths, has_namespaces=has_namespaces, may_run_programs=may_run_programs)


def _visible_parts(path: str, hidden: Sequence[str]) -> Iterator[str]:
    """Yield a path; if something in it is hidden, everything else in it."""
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(folder) for folder in hidden):
        return
    if not any(Path(folder).is_relative_to(real) for folder in hidden):
        yield path
    elif not os.path.islink(path):
        for name in sorted(os.listdir(path)):
            yield from _visible_parts(os.path.join(path, name), hidden)


def _visible_paths() -> Iterator[str]:
    """Yield the files and folders of the system, of Python, and of PYTHONPATH."""
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC.split()), *_DEVICES):
        if os.path.exists(path):
            yield path
    yield sys.prefix
    yield sys.base_prefix
    for folder in filter(None, [*sys.path, os.getcwd()]):
        is_visible = any(Path(folder).is_relative_to(parent) for parent in (sys.prefix, *_SYSTEM))
        if is_visible or folder == "/" or not os.path.isdir(folder):
            continue
        for name in sorted(os.listdir(folder)):
            if not name.startswith(".") and name != _SECRETS:
                yield os.path.join(folder, name)


def _enter_namespaces() -> bool:
    """Enter new namespaces; False if that is not allowed."""
    user = os.geteuid()
    group = os.getegid()
    flags = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    if user != 0:
        flags |= _CLONE_NEWUSER
    if sandbox.c_library().unshare(flags) != 0:
        return False
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _listen() -> socket.socket:
    """Listen on 127.0.0.1, the only address of this network."""
    listener = socket.socket()
    fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    listener.bind(("127.0.0.1", 0))
    listener.listen(_BACKLOG)
    return listener


def _make_root(paths: Sequence[str]) -> str:
    """Mount a root of these paths, read-only, and of scratch folders; return its path."""
    os.umask(0o022)
    handles = {path: os.open(path, os.O_PATH) for path in paths}
    root = "/tmp"
    _mount("", "/", flags=_MS_PRIVATE | _MS_REC)
    _mount("tmpfs", root, "tmpfs", options="mode=755")
    for folder in _SCRATCH:
        os.makedirs(f"{root}{folder}", exist_ok=True)
        options = f"mode=1777,size={_SCRATCH_BYTES}"
        _mount("tmpfs", f"{root}{folder}", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for path, handle in handles.items():
        target = f"{root}{path}"
        if not os.path.lexists(target):
            _bind(path, handle, target)
        os.close(handle)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.makedirs(f"{root}/proc")
    return root


def _bind(path: str, handle: int, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and path in _SYSTEM:
        os.symlink(os.readlink(path), target)
        return
    source = f"/proc/self/fd/{handle}"
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        Path(target).touch()
    _mount(source, target, flags=_MS_BIND)
    if path not in _DEVICES:
        _mount("", target, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID)


def _enter_root(root: str) -> None:
    """Make a folder the root of the file system, with the processes of this namespace in /proc."""
    libc = sandbox.c_library()
    working_folder = os.getcwd()
    # A container may not allow it, and most programs do not need it.
    with suppress(OSError):
        _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV)
    os.chdir(root)
    _check(libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _MNT_DETACH), "umount2")
    _mount("", "/", flags=_MS_REMOUNT | _MS_RDONLY | _MS_BIND)
    os.chdir(working_folder if os.path.isdir(working_folder) else "/tmp")


def _continue_in_child() -> None:
    """Return in a child; this process ends with the child's status."""
    child = os.fork()
    if child == 0:
        die_with_parent(os.getppid())
    else:
        _wait_and_exit(child)


def _wait_and_exit(child: int) -> NoReturn:
    """Reap children until this one ends; a signal becomes the status 128 + its number.

    A stopped child counts as ended, since it would never answer.
    """
    while True:
        change = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED)
        if change is not None and change.si_pid == child:
            os._exit(change.si_status + (0 if change.si_code == os.CLD_EXITED else 128))


def _drop_rights(paths: Sequence[str], *, has_namespaces: bool, may_run_programs: bool) -> None:
    sandbox.become_nobody()
    sandbox.drop_capabilities()
    # The kernel forgets this setting when the user changes.
    die_with_parent(os.getppid())
    has_landlock = sandbox.restrict_files(
        ("/",) if has_namespaces else (*paths, "/proc", "/dev"),
        (*_SCRATCH, *_DEVICES),
        may_run_programs=may_run_programs,
        has_network=True,
    )
    if not has_namespaces and not has_landlock:
        raise OSError("this machine allows neither namespaces nor Landlock")
    sandbox.be_killed_first()
    resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_PROCESSES, _MAX_PROCESSES))
    sandbox.forbid_calls(may_run_programs=may_run_programs)


def main(descriptor: str) -> None:
    """Serve a worker's listener from a jail; its settings are JSON on standard input."""
    die_with_parent()
    settings = json.load(sys.stdin)
    listener = socket.socket(fileno=int(descriptor))
    with listener.accept()[0] as worker:
        enter(worker, settings["hidden"], may_run_programs=settings["may_run_programs"])
    # Imported late: forking needs a single thread, and these imports may run a client's code.
    asyncio.run(importlib.import_module("services.environment.host").serve(listener, settings))


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    status = sandbox.c_library().mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(status, f"mount {target}")


def _check(status: int, call: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
