"""Where clients' programs and data are interpreted: a process that sees little, and can harm less.

It has a user, processes, a network and a file system of its own, as far as kernel and user allow:
root always may; others where user namespaces are allowed, which containers seldom do. There and
everywhere it opens no other file than those (Landlock), and has no system call to get out
(seccomp). Its only way out is a listener that its worker accepts connections from.
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

_NEW_MOUNTS, _NEW_NAMES, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 32, 4096, 16384, 1 << 18, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_FLAGS, _UP = 0x8914, 0x1  # of a network interface
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt")
_SETTINGS = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "passwd", "group", "hosts")
_SETTINGS += ("nsswitch.conf", "localtime", "mime.types")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SCRATCH = ("/tmp", "/dev/shm")
_SCRATCH_BYTES = 2 << 30
_MAX_PROCESSES = 4096
_BACKLOG = 256
_SECRETS = "secrets"  # the folder of docker-compose.yml's


def enter(worker: socket.socket, hidden: Sequence[str], *, may_run_programs: bool) -> None:
    """Continue in a jail; the process that calls this and others wait for it outside.

    Sends ``worker`` the listener of the jail, or nothing but a byte where it has no network of its
    own.

    Raises:
        OSError: if this machine can keep nothing from a process.
    """
    hidden = [os.path.realpath(each) for each in hidden]
    folders = [part for each in dict.fromkeys(_visible()) for part in _shown_parts(each, hidden)]
    is_apart = _leave_namespaces()
    listeners = [_listen()] if is_apart else []
    for each in listeners:
        proxy = "http://{}:{}".format(*each.getsockname())
        os.environ |= {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": "127.0.0.1"}
    socket.send_fds(worker, [b"."], [each.fileno() for each in listeners])
    for each in listeners:
        each.close()
    if is_apart:
        root = _make_root(folders)
        _continue_in_child()
        _enter_root(root)
    _continue_in_child()
    _lock_in(folders, is_apart=is_apart, may_run_programs=may_run_programs)


def _shown_parts(path: str, hidden: Sequence[str]) -> Iterator[str]:
    """A file or folder; where something in it is hidden, all else that is in it."""
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(each) for each in hidden):
        return
    if not any(Path(each).is_relative_to(real) for each in hidden):
        yield path
    elif not os.path.islink(path):
        for name in sorted(os.listdir(path)):
            yield from _shown_parts(os.path.join(path, name), hidden)


def _visible() -> Iterator[str]:
    """The files and folders that are seen: the system's, Python's, and those of programs."""
    yield from filter(os.path.exists, _SYSTEM)
    yield from filter(os.path.exists, (f"/etc/{name}" for name in _SETTINGS))
    yield from filter(os.path.exists, _DEVICES)
    yield from (sys.prefix, sys.base_prefix)
    for folder in dict.fromkeys([*filter(None, sys.path), os.getcwd()]):
        is_known = any(Path(folder).is_relative_to(known) for known in (sys.prefix, *_SYSTEM))
        if not is_known and os.path.isdir(folder) and folder != "/":
            names = sorted(os.listdir(folder))
            yield from (
                os.path.join(folder, name)
                for name in names
                if not name.startswith(".") and name != _SECRETS
            )


def _leave_namespaces() -> bool:
    """Have namespaces of one's own; False if that is not allowed."""
    flags = _NEW_MOUNTS | _NEW_NAMES | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK
    user, group = os.geteuid(), os.getegid()
    if sandbox.c_library().unshare(flags if user == 0 else flags | _NEW_USER) != 0:
        return False
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _listen() -> socket.socket:
    """A listener in this network, whose only address is 127.0.0.1."""
    listener = socket.socket()
    fcntl.ioctl(listener, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    listener.bind(("127.0.0.1", 0))
    listener.listen(_BACKLOG)
    return listener


def _make_root(folders: Sequence[str]) -> str:
    """A file system of these folders, read-only, and of scratch folders; returns where it lies."""
    os.umask(0o022)
    handles = {folder: os.open(folder, os.O_PATH) for folder in folders}
    root = _SCRATCH[0]
    _mount("", "/", flags=_PRIVATE | _RECURSIVE)
    _mount("tmpfs", root, "tmpfs", data="mode=755")
    for folder in _SCRATCH:
        os.makedirs(f"{root}{folder}", exist_ok=True)
        options = f"mode=1777,size={_SCRATCH_BYTES}"
        _mount("tmpfs", f"{root}{folder}", "tmpfs", _NO_SETUID | _NO_DEVICES, options)
    for folder, handle in handles.items():
        target = f"{root}{folder}"
        if not os.path.lexists(target):
            _bind(folder, handle, target)
        os.close(handle)
    for name, number in {"stdin": 0, "stdout": 1, "stderr": 2}.items():
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.makedirs(f"{root}/proc")
    return root


def _bind(folder: str, handle: int, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(folder) and folder in _SYSTEM:
        os.symlink(os.readlink(folder), target)
        return
    if os.path.isdir(f"/proc/self/fd/{handle}"):
        os.makedirs(target)
    else:
        Path(target).touch()
    _mount(f"/proc/self/fd/{handle}", target, flags=_BIND)
    if folder not in _DEVICES:
        _mount("", target, flags=_BIND | _REMOUNT | _READ_ONLY | _NO_SETUID)


def _enter_root(root: str) -> None:
    """Leave the file system of the machine for that of a folder, with its own processes in it."""
    libc, here = sandbox.c_library(), os.getcwd()
    with suppress(OSError):  # a container may not allow it, and most programs need none
        _mount("proc", f"{root}/proc", "proc", _NO_SETUID | _NO_DEVICES)
    os.chdir(root)
    if libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    if libc.umount2(b".", _DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2")
    _mount("", "/", flags=_REMOUNT | _READ_ONLY | _BIND)
    os.chdir(here if os.path.isdir(here) else _SCRATCH[0])


def _continue_in_child() -> None:
    """Return in a child; this process ends as it does."""
    if (child := os.fork()) == 0:
        die_with_parent(os.getppid())
    else:
        _end_with(child)


def _end_with(child: int) -> NoReturn:
    """Bury all that comes to this process, until the child has ended; a signal is 128 and more.

    One that is stopped, as by a program that it runs, has ended: it would answer nobody.
    """
    while (
        news := os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED)
    ) is None or news.si_pid != child:
        pass
    os._exit(news.si_status + (0 if news.si_code == os.CLD_EXITED else 128))


def _lock_in(folders: Sequence[str], *, is_apart: bool, may_run_programs: bool) -> None:
    sandbox.become_nobody()
    sandbox.drop_capabilities()
    die_with_parent(os.getppid())  # another user has forgotten it
    may_open = {"may_run_programs": may_run_programs, "has_network": True}
    writable = (*_SCRATCH, *_DEVICES)
    readable = ("/",) if is_apart else (*folders, "/proc", "/dev")
    is_closed = sandbox.restrict_files(readable, writable, **may_open)
    if not is_apart and not is_closed:
        raise OSError("this machine allows neither namespaces nor Landlock")
    sandbox.be_killed_first()
    resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_PROCESSES, _MAX_PROCESSES))
    sandbox.forbid_calls(may_run_programs=may_run_programs)


def main(descriptor: str) -> None:
    """Serve a worker at a listener from a jail; its standard input says which."""
    die_with_parent()
    settings = json.load(sys.stdin)
    listener = socket.socket(fileno=int(descriptor))
    with listener.accept()[0] as worker:
        enter(worker, settings["hidden"], may_run_programs=settings["may_run_programs"])
    # Not before: there must be one thread, and what is imported from here on is the client's.
    asyncio.run(importlib.import_module("services.environment.host").serve(listener, settings))


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    if sandbox.c_library().mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
