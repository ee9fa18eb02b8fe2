"""Ranks that are forked of one process, which has imported all: they start in no time."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable


def run_forked(num_ranks: int, work: Callable[[], None]) -> None:
    """Do the work in as many ranks, of which the others are killed when rank 0 ends, or any fails.

    Raises:
        RuntimeError: if one failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_fork(rank, num_ranks, port, work) for rank in range(num_ranks)]
    ended, status = os.wait()
    while ended != ranks[0] and status == 0:
        ranks.remove(ended)
        ended, status = os.wait()
    ranks.remove(ended)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    if status:
        raise RuntimeError("a rank has failed")


def _fork(rank: int, num_ranks: int, port: int, work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "forked",
    }
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
