"""The process that forks workers, and what a worker does.

It imports once, warms up, and stays single-threaded. The pool sends it an end of a connection for
each worker. A worker says its pid, then answers calls, a line of JSON each, and nothing is ever
unpickled; where it has ended, this process says how, as the last line. A set-up is an order before
the first worker; one that raises is the answer to all who ask for workers.
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
    has_call_filter,
    leave_network,
    lock_in,
)

_GIBIBYTE = 1 << 30
_SLEEP_S = 10.0  # that a set-up may last beyond its CPU time
_MAX_DETAIL_CHARS = 500
_MAX_ORDER_BYTES = 1 << 16


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
    news, me, serving = select.poll(), os.getpid(), True
    news.register(orders, select.POLLIN)
    news.register(woken, select.POLLIN)
    while serving:
        ready = {fd for fd, _ in news.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _bury(connections)
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
                elif (pid := os.fork()) == 0:
                    _work(connection, [orders, woken, deaths, *connections.values()], confined, me)
                else:
                    connections[pid] = connection


def _set_up(function: str, args: list[Any], deadline_s: float) -> bytes:
    """Return nothing, or the line that says how it failed.

    The kernel ends one that takes too long, and this process with it.
    """
    _, most_bytes = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 * _GIBIBYTE, most_bytes))
    signal.setitimer(signal.ITIMER_REAL, deadline_s + _SLEEP_S)
    line = _answer(0, deadline_s, function, args)
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    gc.freeze()
    return line if "failed" in json.loads(line) else b""


def _bury(connections: dict[int, socket.socket]) -> None:
    while connections:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = encode_line({"died": os.waitstatus_to_exitcode(status)})
        with connections.pop(pid) as connection, suppress(OSError):  # nobody listens any more
            connection.sendall(b"\n" + told)  # it may have died in the middle of a line


def _work(
    connection: socket.socket, others: list[socket.socket], confined: bool, parent: int
) -> NoReturn:
    """The life of a forked process, which has no end of the ``others``."""
    try:
        die_with_parent(parent)
        connection.sendall(encode_line(os.getpid()))
        signal.set_wakeup_fd(-1)
        for other in others:
            other.close()
        memory_bytes = _GIBIBYTE if confined else 2 * _GIBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        be_killed_first()
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
