"""The process that forks the workers of a pool, and their loop.

It imports once, warms up, and has one thread. For each worker the pool sends it one end of a
connection. A worker writes its pid, then answers calls; every message is a line of JSON, and no
pickle is ever read. When a worker ends, this process writes its exit code as the last line. A
set-up arrives before the first worker; if it raises, its error answers all requests for workers.
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
from typing import Any, NoReturn

from services.chassis.parent import die_with_parent
from services.chassis.pool import encode_line
from services.chassis.pool.sandbox import (
    be_killed_first,
    enter_sandbox,
    has_call_filter,
    leave_network,
)
from services.chassis.timeouts import STALL_GRACE_S

_GIBIBYTE = 1 << 30
_MAX_DETAIL_CHARS = 500
_MAX_ORDER_BYTES = 1 << 16


def main(fd: str, confined: str, *warm_ups: str) -> None:
    die_with_parent()
    # A signal to the process group stops the service, which finishes its calls first.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    for name in warm_ups:
        resolve(name)()
    if confined and not leave_network():
        print("clients' code can reach the network: unshare is not allowed here", file=sys.stderr)
    if confined and not has_call_filter():
        print("clients' code may make any system call: install libseccomp2", file=sys.stderr)
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
    refusal = b""
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    poll.register(woken, select.POLLIN)
    serving = True
    while serving:
        ready = {fd for fd, _ in poll.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _report_deaths(connections)
        if orders.fileno() in ready:
            order, fds, _, _ = socket.recv_fds(orders, _MAX_ORDER_BYTES, 1)
            serving = bool(order)
            if order and not fds:
                refusal = _set_up(*json.loads(order))
            for fd in fds:
                connection = socket.socket(fileno=fd)
                if refusal:
                    connection.sendall(refusal)
                    connection.close()
                else:
                    sockets = [orders, woken, deaths, *connections.values()]
                    connections[_fork(connection, sockets, confined)] = connection


def _fork(connection: socket.socket, parent_sockets: list[socket.socket], confined: bool) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _work(connection, parent_sockets, confined, parent)
    return pid


def _set_up(function: str, args: list[Any], deadline_s: float) -> bytes:
    """Return an empty line, or the line with its failure.

    The kernel kills this process if the set-up takes too long.
    """
    _, max_bytes = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 * _GIBIBYTE, max_bytes))
    signal.setitimer(signal.ITIMER_REAL, deadline_s + STALL_GRACE_S)
    line = _answer(0, deadline_s, function, args)
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    gc.freeze()
    return line if "failed" in json.loads(line) else b""


def _report_deaths(connections: dict[int, socket.socket]) -> None:
    while connections:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        line = encode_line({"died": os.waitstatus_to_exitcode(status)})
        with connections.pop(pid) as connection, suppress(OSError):
            connection.sendall(b"\n" + line)  # the worker may have died in the middle of a line


def _work(
    connection: socket.socket, parent_sockets: list[socket.socket], confined: bool, parent: int
) -> NoReturn:
    """Answer calls in a forked process until the connection ends."""
    try:
        die_with_parent(parent)
        connection.sendall(encode_line(os.getpid()))
        signal.set_wakeup_fd(-1)
        for parent_socket in parent_sockets:
            parent_socket.close()
        memory_bytes = _GIBIBYTE if confined else 2 * _GIBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        be_killed_first()
        if confined:
            enter_sandbox()
            die_with_parent(parent)  # a change of user resets it
        for line in connection.makefile("rb"):
            connection.sendall(_answer(*json.loads(line)))
        os._exit(0)
    finally:
        os._exit(1)


def _answer(number: int, deadline_s: float, function: str, args: list[Any]) -> bytes:
    """Run a call. The kernel ends it after ``deadline_s`` of CPU time, also inside a C call."""
    signal.setitimer(signal.ITIMER_PROF, deadline_s)
    try:
        return encode_line({"number": number, "value": resolve(function)(*args)})
    except MemoryError:
        failed = {"failed": "memory", "detail": "over the memory limit"}
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL_CHARS]
        failed = {"failed": "error", "detail": detail}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return encode_line({"number": number, **failed})


if __name__ == "__main__":
    main(*sys.argv[1:])
