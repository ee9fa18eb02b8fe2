"""The process that forks workers: it imports once, warms up, and stays single-threaded.

Started by `services.grader.nursery` as ``python -m services.grader.nursery_process FD PARENT_PID
MEMORY_BYTES confined|free WARM_UP...``. Orders come in over the socket FD, deaths go out. It is the
only parent of the workers, so that it alone kills and buries them and a pid can never mean somebody
else.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from services.chassis.parent import die_with_parent
from services.grader.confinement import leave_network, lock_in
from services.grader.pool_worker import answer_until_closed, limit_memory, resolve

MAX_MESSAGE_BYTES = 4096


class _Nursery:
    """The workers under one roof, by the number that the pool gave each of them."""

    def __init__(self, control: socket.socket, memory_bytes: int, confined: bool) -> None:
        self.control = control
        self.confined = confined
        self.memory_bytes = memory_bytes
        self.pids: dict[int, int] = {}  # by worker number
        self.woken, self.wake = socket.socketpair()

    def serve_until_closed(self) -> None:
        """Obey orders and report deaths until the pool closes its end, then kill all workers."""
        self.wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        self._tell(ready=True)
        serving = True
        while serving:
            readable, _, _ = select.select([self.control, self.woken], [], [])
            if self.woken in readable:
                self.woken.recv(MAX_MESSAGE_BYTES)
                self._bury_the_dead()
            if self.control in readable:
                serving = self._obey()
        signal.set_wakeup_fd(-1)  # nobody listens for the deaths that follow
        for number in list(self.pids):
            self._kill(number)

    def _obey(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self.control, MAX_MESSAGE_BYTES, 1)
        except ConnectionResetError:  # the pool left before it had read all the news
            return False
        if not message:
            return False
        order = json.loads(message)
        if fds:
            self._fork(order["fork"], socket.socket(fileno=fds[0]))
        else:
            self._kill(order["kill"])
        return True

    def _fork(self, number: int, pipe: socket.socket) -> None:
        nursery_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_worker(pipe, nursery_pid)
        pipe.close()
        self.pids[number] = pid

    def _be_worker(self, pipe: socket.socket, nursery_pid: int) -> NoReturn:
        status = 1
        try:
            die_with_parent(nursery_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self.control, self.woken, self.wake):
                inherited.close()
            limit_memory(self.memory_bytes)
            if self.confined:
                lock_in()
                die_with_parent(nursery_pid)  # a new user forgets it
            answer_until_closed(pipe)
            status = 0
        finally:
            os._exit(status)

    def _kill(self, number: int) -> None:
        if number in self.pids:
            os.kill(self.pids[number], signal.SIGKILL)

    def _bury_the_dead(self) -> None:
        for number, pid in list(self.pids.items()):
            buried, status, usage = os.wait4(pid, os.WNOHANG)
            if buried:
                del self.pids[number]
                cpu_s = usage.ru_utime + usage.ru_stime
                self._tell(died=number, status=os.waitstatus_to_exitcode(status), cpu_s=cpu_s)

    def _tell(self, **message: float) -> None:
        with contextlib.suppress(BrokenPipeError):  # the pool is gone, as `_obey` will find out
            self.control.send(json.dumps(message).encode())


def main(fd: str, parent_pid: str, memory_bytes: str, confined: str, *warm_ups: str) -> None:
    """Warm up, say so, and fork workers until the pool is gone."""
    die_with_parent(int(parent_pid))
    # A signal to the whole process group asks the service to stop. It finishes its grades first.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    for name in warm_ups:
        resolve(name)()
    if confined == "confined" and not leave_network():
        print("clients' code can reach the network: unshare is not allowed here", file=sys.stderr)
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(fd))
    _Nursery(control, int(memory_bytes), confined == "confined").serve_until_closed()


if __name__ == "__main__":
    main(*sys.argv[1:])
