"""Each error is a fault of the job or of the machine; the latter has a remedy."""

import errno
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import torch
from protocol.exchange import Disconnected, Fenced
from protocol.frames import FrameError
from protocol.messages import Fault
from protocol.placement import PlacementError
from protocol.tasks import TaskFileError
from protocol.weights import WeightsGone
from redis.exceptions import NoPermissionError
from safetensors import SafetensorError
from safetensors.torch import save_file

from services.learner.algorithms import UnknownName
from services.learner.attempt import EnginesFault, JobFault, MachineFault
from services.learner.faults import classify_fault, describe_fault, fault_key
from services.learner.model_source import ModelNotFound, NotOnHub
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.ranks import BatchTooLarge, Order, Rank, TeamBroken
from tests.unit.learner.test_log import file_size_limit

DATA = "/data"
ERRORS = {
    error.__name__: error
    for error in (
        RuntimeError,
        ImportError,
        TeamBroken,
        NoPermissionError,
        redis.ResponseError,
        redis.ReadOnlyError,
        redis.AuthenticationError,
    )
}
# A word of the remedy, the type of an error, and its text.
BY_TEXT = """
Redis' disk | ResponseError | MISCONF Errors writing to the AOF file: No space left
primary | ReadOnlyError | You can't write against a read only replica.
replicas | ResponseError | NOREPLICAS Not enough good replicas to write.
cluster | ResponseError | CLUSTERDOWN The cluster is down
ACL | ResponseError | NOPERM this user has no permissions
ACL | NoPermissionError | no
password | AuthenticationError | invalid username-password pair
pids_limit | RuntimeError | can't start new thread
/dev/shm | RuntimeError | unable to write to file </torch_123>: No space left on device (28)
/dev/shm | RuntimeError | NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL 2.27.3
driver | ImportError | libcuda.so.1: cannot open shared object file: No such file or directory
driver | ImportError | libtorch_cuda.so: undefined symbol: ncclCommInitRankConfig
driver | RuntimeError | The NVIDIA driver on your system is too old (found version 11040)
nvidia-smi | RuntimeError | CUDA error: an illegal memory access was encountered
nvidia-smi | RuntimeError | CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(`
nvidia-smi | RuntimeError | cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
nvidia-smi | RuntimeError | No CUDA GPUs are available
nvidia-smi | TeamBroken | rank 3: CUDA error: uncorrectable ECC error encountered
compiler | RuntimeError | Error building extension 'cpu_adam'
compiler | RuntimeError | Failed to find C compiler. Please specify via CC environment variable
"""
UNKNOWN_FAULTS: list[Exception] = [
    RuntimeError("CUDA error: device-side assert triggered"),  # an index beyond its table
    RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(`"),
    ImportError("No module named 'my_lab'"),
    *(error("why") for error in (ValueError, RuntimeError, AssertionError)),
]


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.ENOSPC, "full"), ["[Errno 28]", DATA, "free space"]),
        (OSError(errno.ENOENT, "gone", "/x/a.jsonl"), ["[Errno 2]", "/x/a.jsonl", "mount"]),
        (OSError(errno.EACCES, "denied", "/x"), ["[Errno 13]", "/x", "user"]),
        (OSError(errno.EIO, "broken", "/x"), ["[Errno 5]", "/x", "repair"]),
        (TimeoutError(), ["TimeoutError", "repair"]),
        (MemoryError(), ["memory"]),
        (MachineFault("mend it"), ["mend it"]),
        (ModelNotFound("mount it"), ["mount it"]),
        (PlacementError("write WEIR_GPUS"), ["write WEIR_GPUS"]),
        (FrameError("move it away"), ["move it away"]),
        (WeightsGone("/memory/1.0: gone"), ["/memory/1.0: gone"]),
        (OSError("libcudart.so.12: cannot open shared object file"), ["driver"]),
        (CalledProcessError(1, ["/usr/bin/gcc", "/tmp/tmpj2a/main.c", "-O3"]), ["compiler"]),
    ],
)
def test_a_fault_of_the_machine_has_a_remedy(error: Exception, parts: list[str]) -> None:
    assert classify_fault(error) is Fault.MACHINE
    problem = describe_fault(error, DATA)
    assert [part for part in parts if part not in problem] == []


@pytest.mark.parametrize("row", BY_TEXT.strip().splitlines())
def test_the_text_of_an_error_shows_a_fault_of_the_machine(row: str) -> None:
    remedy, kind, text = row.split(" | ")
    test_a_fault_of_the_machine_has_a_remedy(ERRORS[kind](text), [text, remedy])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        *((Fault.NOBODY, error()) for error in (*Disconnected, Fenced, TeamBroken)),
        *((Fault.JOB, error("why")) for error in (JobFault, NotOnHub, UnknownName)),
        *((Fault.JOB, error) for error in (TaskFileError(["why"]), UnsupportedModel("why"))),
        (Fault.MEMORY, BatchTooLarge("CUDA out of memory")),
        (Fault.ENGINES, EnginesFault("why")),
        (Fault.JOB, JobFault("4 groups are lost: failures: RuntimeError: CUDA error: unknown")),
        (
            Fault.NOBODY,
            TeamBroken("NCCL error: remote process exited or there was a network error"),
        ),
        *((Fault.UNKNOWN, error) for error in UNKNOWN_FAULTS),
    ],
)
def test_each_error_has_one_fault(fault: Fault, error: Exception) -> None:
    assert classify_fault(error) is fault
    assert str(error) in describe_fault(error)


def test_the_same_cause_is_the_same_whichever_attempt_meets_it() -> None:
    first, second = (OSError(errno.ENOSPC, "full", f"/log/{n}.segment") for n in (1, 2))
    assert fault_key(first) == fault_key(second) == "ENOSPC"
    assert fault_key(MachineFault("a")) != fault_key(MachineFault("b"))
    first, second = (RuntimeError(f"</torch_{n}>: No space left on device (28)") for n in (1, 2))
    assert fault_key(first) == fault_key(second)


def save_tensors(folder: Path) -> None:
    torch.save({"weight": torch.zeros(100_000)}, folder / "weight.pt")


def export_tensors(folder: Path) -> None:
    save_file({"weight": torch.zeros(100_000)}, folder / "weight.safetensors")


def export_beyond_the_disk(folder: Path) -> None:
    problem = "Error while serializing: I/O error: No space left on device (os error 28)"
    raise SafetensorError(f"{problem} in {folder}")


def allocate(_: Path) -> None:
    torch.empty(10**15)


@pytest.mark.parametrize(
    ("save", "raised", "cause"),
    [
        (save_tensors, OSError, "EIO"),
        (export_tensors, OSError, "EFBIG"),
        (export_beyond_the_disk, OSError, "ENOSPC"),
        (allocate, MemoryError, None),
    ],
)
def test_the_machines_errors_are_known_whichever_library_meets_them(
    tmp_path: Path, save: Any, raised: type[Exception], cause: str | None
) -> None:
    rank: Any = Rank()
    rank.trainer = SimpleNamespace(models=SimpleNamespace(save=save))
    with file_size_limit(100_000), pytest.raises(raised) as caught:
        rank.carry_out(Order(do="save", folder=str(tmp_path)))
    assert caught.type is raised
    assert classify_fault(caught.value) is Fault.MACHINE
    if cause is not None:
        assert fault_key(caught.value) == cause
        assert str(tmp_path) in str(caught.value)
