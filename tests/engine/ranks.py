"""Ranks that start in no time: they are forked of a process that has imported everything once."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest

from deploy.processes import free_ports
from services.chassis.parent import die_with_parent

FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = [
    "pytest",  # which a fork finds in its main module
    "tests.engine.trouble",
    "services.learner.job.role",
    "services.learner.sft.run",
    "peft.tuners.lora",
    "transformers.models.qwen2.modeling_qwen2",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # which imports half of torch
    "deepspeed.module_inject.auto_ep_config",
    "deepspeed.ops.op_builder.all_ops",
    "tests.forks",
]
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**20),  # what is freed is returned, and can be measured
}
_LIMIT_S = 250.0
_GRACE_S = 60.0  # for the last words of ranks when one has failed


class RankFailed(RuntimeError):
    """A rank has failed, or took too long; the text is what the ranks have said."""


class Ranks:
    output = ""  # of the last run

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in _ENVIRONMENT.items():
                patched.setenv(name, value)
            FORKS.set_forkserver_preload(_IMPORTED)
            first = FORKS.Process(target=int)
            first.start()
            first.join()

    def run(
        self,
        function: Callable[..., Any],
        *,
        ranks: int = 1,
        others_may_fail: bool = False,
        **arguments: Any,
    ) -> Any:
        """Call a function on so many ranks; returns what rank 0 returns, as JSON has it.

        Args:
            function: of a module that can be imported by its name.
            ranks: how many.
            others_may_fail: only rank 0 has to end, and well; others are killed then.
            arguments: of the function; paths arrive as strings.

        Raises:
            RankFailed: if one fails, or does not end.
        """
        port = next(free_ports())
        arguments = json.loads(json.dumps(arguments, default=str))
        with TemporaryDirectory() as folder:
            running = {}
            for rank in range(ranks):
                call = (function, arguments, rank, ranks, port, Path(folder))
                process = FORKS.Process(target=_live, args=call)
                process.start()
                running[process.sentinel] = rank, process
            failed = False
            limit = time.monotonic() + _LIMIT_S
            while running and time.monotonic() < limit:
                for sentinel in wait(list(running), timeout=1):
                    rank, process = running.pop(sentinel)
                    process.join()
                    if others_may_fail and rank == 0:
                        limit = 0
                    if process.exitcode and (rank == 0 or not others_may_fail):
                        failed, limit = True, min(limit, time.monotonic() + _GRACE_S)
            for rank, process in running.values():
                process.kill()
                process.join()
                failed |= rank == 0 or not others_may_fail
            self.output = Path(folder, "output").read_text()
            if failed:
                raise RankFailed(f"{function.__name__} on {ranks} ranks:\n{self.output[-3000:]}")
            return json.loads(Path(folder, "returned").read_text())


def _live(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    rank: int,
    num_ranks: int,
    port: int,
    folder: Path,
) -> NoReturn:
    die_with_parent()
    log = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if num_ranks > 1:
        os.environ["TORCHELASTIC_RUN_ID"] = "forked"
    status = 1
    try:
        value = function(**arguments)
        if rank == 0:
            (folder / "returned").write_text(json.dumps(value))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread of torch may abort a process that ends in good order
