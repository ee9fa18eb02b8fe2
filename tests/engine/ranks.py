"""Ranks that start in no time: they are forked of a process that has imported everything once.

``python -m tests.engine.ranks`` obeys the lines on its standard input, of which each is a `_Job`,
and answers each with a line: what rank 0 has returned, or that a rank has failed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from deploy.processes import free_ports
from services.chassis.parent import die_with_parent

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "tests.engine.trouble",
    "services.learner.sft.run",
    "peft.tuners.lora",
    "transformers.models.qwen2.modeling_qwen2",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # which imports half of torch
    "deepspeed.module_inject.auto_ep_config",
    "deepspeed.ops.op_builder.all_ops",
)
_LIMIT_S = 500.0
_GRACE_S = 60.0  # for the last words of ranks when one has failed
_POLL_S = 0.02


class RankFailed(RuntimeError):
    """A rank has failed, or took too long; the text is what the ranks have said."""


@dataclass(frozen=True)
class _Job:
    """A function to call on each of so many ranks."""

    function: str  # "module:name"
    ranks: int
    arguments: dict[str, Any]
    output: str  # the path of what they say
    others_may_fail: bool


@dataclass
class Ranks:
    """The process that has imported everything; it starts with the first job."""

    output: str = ""  # of the last job
    _process: subprocess.Popen[str] | None = None
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=tempfile.TemporaryDirectory[str]
    )

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
        if self._process is None:
            self._process = _start()
        name = f"{function.__module__}:{function.__name__}"
        output = Path(self._folder.name, "output")
        job = _Job(name, ranks, arguments, str(output), others_may_fail)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(job), default=str), file=self._process.stdin, flush=True)
        answers, *_ = select.select([self._process.stdout], [], [], _LIMIT_S)
        answer = self._process.stdout.readline() if answers else ""
        self.output = output.read_text() if output.exists() else ""
        if not answer:
            self.end()
        status, returned = json.loads(answer or "[1, null]")
        if status:
            raise RankFailed(f"{name} on {ranks} ranks:\n{self.output[-3000:]}")
        return returned

    def end(self) -> None:
        """End the process, and all that it has forked; another job starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _start() -> subprocess.Popen[str]:
    own = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "proto"), str(ROOT)]),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**20),  # what is freed is returned, and can be measured
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.ranks"],
        cwd=ROOT,
        env={**os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Import what jobs need, and do them one after another."""
    die_with_parent()
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an import prints is nobody's answer
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy all it has inherited
    for line in sys.stdin:
        print(json.dumps(_do(_Job(**json.loads(line)))), file=told)


def _do(job: _Job) -> tuple[int, Any]:
    """The status of rank 0 and what it has returned."""
    port = next(free_ports())
    returned = Path(f"{job.output}.returned")
    returned.unlink(missing_ok=True)
    Path(job.output).unlink(missing_ok=True)
    running = {_fork(job, rank, port, returned): rank for rank in range(job.ranks)}
    limit, failed = time.monotonic() + _LIMIT_S / 2, False
    while running and time.monotonic() < limit:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            time.sleep(_POLL_S)
            continue
        rank = running.pop(ended)
        if job.others_may_fail and rank == 0:
            limit = 0
        if status and (rank == 0 or not job.others_may_fail):
            failed, limit = True, min(limit, time.monotonic() + _GRACE_S)
    for left, rank in running.items():
        os.kill(left, signal.SIGKILL)
        os.waitpid(left, 0)
        failed = failed or rank == 0 or not job.others_may_fail
    return (1, None) if failed else (0, json.loads(returned.read_text()))


def _fork(job: _Job, rank: int, port: int, returned: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if job.ranks > 1:
        os.environ["TORCHELASTIC_RUN_ID"] = "forked"
    _live(job, rank, returned)


def _live(job: _Job, rank: int, returned: Path) -> NoReturn:
    die_with_parent()
    log = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        module, _, name = job.function.partition(":")
        value = getattr(importlib.import_module(module), name)(**job.arguments)
        if rank == 0:
            returned.write_text(json.dumps(value))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread of torch may abort a process that ends in good order


if __name__ == "__main__":
    main()
