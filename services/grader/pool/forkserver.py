"""The process that forks workers: it imports once, warms up, and stays single-threaded.

`processes.py` starts it, and sends it an end of a connection for each worker to be forked. Both
hold that end. If the pool closes the other one, or only says that it will send no more, this
process kills the worker; where a worker has ended, this process says how, as the last line of its
connection. As the only parent of the workers it alone kills and buries them, so that a pid can
never mean somebody else.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from services.chassis.parent import die_with_parent
from services.grader.pool.confinement import leave_network, lock_in
from services.grader.pool.worker import READY, answer_until_closed, as_line, limit_memory, resolve

_GIBIBYTE = 1 << 30


class _ForkServer:
    def __init__(self, orders: socket.socket, confined: bool) -> None:
        self.orders = orders
        self.confined = confined
        self.pid = os.getpid()
        self.workers: dict[int, tuple[int, socket.socket]] = {}  # by pid: pidfd, connection
        self.news = select.epoll()
        self.news.register(orders, select.EPOLLIN)

    def serve_until_closed(self) -> None:
        """Fork, kill and bury until the pool closes its end of the orders, or dies."""
        serving = True
        while serving:
            ready = {fd for fd, _ in self.news.poll()}
            for pid, (pidfd, connection) in list(self.workers.items()):
                if pidfd in ready:
                    self._bury(pid, pidfd, connection)
                elif connection.fileno() in ready:
                    os.kill(pid, signal.SIGKILL)
            if self.orders.fileno() in ready:
                order, fds, _, _ = socket.recv_fds(self.orders, 1, 1)
                serving = bool(order)
                for fd in fds:
                    self._fork(socket.socket(fileno=fd))

    def _fork(self, connection: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            self._work(connection)
        pidfd = os.pidfd_open(pid)
        self.workers[pid] = pidfd, connection
        self.news.register(pidfd, select.EPOLLIN)
        self.news.register(connection, select.EPOLLRDHUP | select.EPOLLET)  # told once

    def _work(self, connection: socket.socket) -> NoReturn:
        try:
            die_with_parent(self.pid)
            connection.sendall(READY)
            self.orders.close()
            self.news.close()
            for pidfd, other in self.workers.values():
                os.close(pidfd)
                other.close()
            limit_memory(_GIBIBYTE if self.confined else 2 * _GIBIBYTE)
            if self.confined:
                lock_in()
                die_with_parent(self.pid)  # a new user forgets it
            answer_until_closed(connection)
            os._exit(0)
        finally:
            os._exit(1)

    def _bury(self, pid: int, pidfd: int, connection: socket.socket) -> None:
        del self.workers[pid]
        self.news.unregister(pidfd)
        self.news.unregister(connection)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        end = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        with connection, suppress(OSError):  # nobody listens any more
            connection.sendall(b"\n" + as_line(end))  # it may have died in the middle of a line


def main(fd: str, confined: str, *warm_ups: str) -> None:
    """Warm up, and fork workers until the pool is gone."""
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
    _ForkServer(socket.socket(fileno=int(fd)), bool(confined)).serve_until_closed()


if __name__ == "__main__":
    main(*sys.argv[1:])
