"""The process that forks workers, and what a worker does.

It imports once, warms up, and stays single-threaded. The pool sends it an end of a connection for
each worker. A worker says its pid, then answers calls, a line of JSON each, and nothing is ever
unpickled; where it has ended, this process says how, as the last line.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from services.chassis.parent import die_with_parent
from services.grader.pool import as_line
from services.grader.pool.sandbox import leave_network, lock_in

_GIBIBYTE = 1 << 30
_MAX_DETAIL_CHARS = 500


def main(fd: str, confined: str, *warm_ups: str) -> None:
    die_with_parent()
    # A signal to the whole process group asks the service to stop. It finishes its grades first.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    for name in warm_ups:
        resolve(name)()
    if confined and not leave_network():
        print("clients' code can reach the network: unshare is not allowed here", file=sys.stderr)
    gc.collect()
    gc.freeze()
    _serve_until_closed(socket.socket(fileno=int(fd)), bool(confined))


def resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _serve_until_closed(orders: socket.socket, confined: bool) -> None:
    woken, deaths = socket.socketpair()
    deaths.setblocking(False)
    signal.set_wakeup_fd(deaths.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    connections: dict[int, socket.socket] = {}
    news, me, serving = select.poll(), os.getpid(), True
    news.register(orders, select.POLLIN)
    news.register(woken, select.POLLIN)
    while serving:
        ready = {fd for fd, _ in news.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _bury(connections)
        if orders.fileno() in ready:
            order, fds, _, _ = socket.recv_fds(orders, 1, 1)
            serving = bool(order)
            for fd in fds:
                connection = socket.socket(fileno=fd)
                if (pid := os.fork()) == 0:
                    _work(connection, [orders, woken, deaths, *connections.values()], confined, me)
                connections[pid] = connection


def _bury(connections: dict[int, socket.socket]) -> None:
    while connections:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = as_line({"died": os.waitstatus_to_exitcode(status)})
        with connections.pop(pid) as connection, suppress(OSError):  # nobody listens any more
            connection.sendall(b"\n" + told)  # it may have died in the middle of a line


def _work(
    connection: socket.socket, others: list[socket.socket], confined: bool, parent: int
) -> NoReturn:
    """The life of a forked process, which has no end of the ``others``."""
    try:
        die_with_parent(parent)
        connection.sendall(as_line(os.getpid()))
        signal.set_wakeup_fd(-1)
        for other in others:
            other.close()
        memory_bytes = _GIBIBYTE if confined else 2 * _GIBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # not every sandbox has it: the kernel should kill a worker first
            Path("/proc/self/oom_score_adj").write_text("1000")
        if confined:
            lock_in()
            die_with_parent(parent)  # a new user forgets it
        for line in connection.makefile("rb"):
            connection.sendall(_answer(*json.loads(line)))
        os._exit(0)
    finally:
        os._exit(1)


def _answer(number: int, deadline_s: float, function: str, args: list[Any]) -> bytes:
    """The kernel ends a call that takes more CPU time, in the middle of a C call too."""
    signal.setitimer(signal.ITIMER_PROF, deadline_s)
    try:
        return as_line({"number": number, "value": resolve(function)(*args)})
    except MemoryError:
        failed = {"failed": "memory", "detail": "over the memory limit"}
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL_CHARS]
        failed = {"failed": "error", "detail": detail}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return as_line({"number": number, **failed})


if __name__ == "__main__":
    main(*sys.argv[1:])
