"""Whose fault it was that an attempt at a job ended, and so who pays for it. Pure."""

from __future__ import annotations

import errno
import re

from protocol.exchange import Disconnected, Fenced
from protocol.frames import FrameError
from protocol.messages import Fault
from protocol.placement import PlacementError
from protocol.tasks import TaskFileError
from protocol.weights import WeightsError

from services.chassis.faults import Unworkable, WorkerFault
from services.learner.algorithms import UnknownName
from services.learner.attempt import EnginesFault, JobFault, MachineFault, RepeatNeeded
from services.learner.model_source import ModelNotFound, NotOnHub
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.ranks import BatchTooLarge, TeamBroken

# The first row counts that has the error. What each fault costs the job, and what people hear of
# it, is in `Run.end_by`.
_TABLE: tuple[tuple[Fault, tuple[type[Exception], ...]], ...] = (
    (Fault.NOBODY, (*Disconnected, Fenced, TeamBroken, RepeatNeeded)),
    (Fault.JOB, (JobFault, NotOnHub, TaskFileError, UnknownName, UnsupportedModel, Unworkable)),
    (Fault.MEMORY, (BatchTooLarge,)),
    (Fault.ENGINES, (EnginesFault,)),
    (Fault.MACHINE, (MachineFault, ModelNotFound, PlacementError, FrameError, WeightsError)),
    (Fault.MACHINE, (WorkerFault,)),
    (Fault.MACHINE, (MemoryError, OSError)),  # whose words lack the remedy
    (Fault.UNKNOWN, (Exception,)),
)
_OPEN = {Fault.NOBODY, Fault.UNKNOWN}  # where the words may tell of the machine
_REMEDIES = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space within the quota of that disk",
    errno.ENOENT: "restore it, or mount the folder that it is in",
    errno.ESTALE: "mount the folder that it is in again",
    errno.EACCES: "let the learner's user read and write there",
    errno.EPERM: "let the learner's user read and write there",
    errno.EROFS: "mount the folder so that the learner can write there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
    errno.ENOMEM: "free memory on the learner's machine",
}
_ANOTHER_REMEDY = "see that the disk has space, or mend it or the connection behind it"
# The same by a library's own words, or its error's name; not what batches or formulas may cause.
_REMEDIES_BY_WORDS = {
    r"MISCONF": "free space on Redis' disk, or see in its log why it cannot save",
    r"READONLY|ReadOnlyError": "name Redis' primary in WEIR_REDIS_URL, or end the failover",
    r"NOREPLICAS": "start Redis' replicas, or lower its min-replicas-to-write",
    r"CLUSTERDOWN|ClusterDownError": "mend the Redis cluster",
    r"NOPERM|NoPermissionError": "give the learner's user the rights it lacks (Redis' ACL)",
    r"WRONGPASS|NOAUTH|AuthenticationError": "give the learner Redis' password (WEIR_REDIS_URL)",
    r"start new thread|Resource temporarily": "raise the limit of threads (ulimit -u, pids_limit)",
    r"No space left on device": "free space on that disk, or give /dev/shm more (shm_size)",
    r"NCCL error(?!.*remote process)": "see to GPUs, network and /dev/shm (NCCL_DEBUG=INFO helps)",
    r"libcuda\.so|NVIDIA driver|\.so[.\d]*: (?:cannot open shared|undefined symbol)": (
        "install a driver of the GPU and libraries that fit, and give the learner its GPUs"
    ),
    r"CUDA error(?!: (?:device-side assert|\w+_(?:INVALID_VALUE|NOT_SUPPORTED)))|CUDA GPUs|cudaGet"
    r"|CUDA (?:driver|unknown)|\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INIT|MAPPING)": (
        "see to the learner's GPU (nvidia-smi, dmesg), and restart it or its machine"
    ),
    r"C compiler|C\+\+ compile|Error building extension|Ninja is required|PTXAS error|CUDA_HOME"
    r"|(?:gcc|g\+\+|clang|nvcc|ninja|ptxas).*returned non-zero": (
        "mend the compiler of the learner's machine (gcc, ninja, Python's headers); see its log"
    ),
}


def fault_of(error: Exception) -> Fault:
    fault = _fault_by_type(error)
    return Fault.MACHINE if fault in _OPEN and _remedy_of(error) else fault


def words_of(error: Exception, place: str = "WEIR_DATA_DIR or WEIR_MEMORY_DIR") -> str:
    """What is wrong, and the remedy as far as it is known.

    Args:
        error: what ended an attempt.
        place: what an error that names no file was about, as that of a full disk.
    """
    fault, remedy = fault_of(error), _remedy_of(error)
    if fault is Fault.MACHINE and isinstance(error, MemoryError):
        return "the learner's machine is out of memory; free memory on it, or give it more"
    if isinstance(error, OSError):
        place = "" if error.filename or error.errno is None else f", below {place}"
        return f"{str(error) or type(error).__name__}{place}; {remedy}"
    words = f"{type(error).__name__}: {error}"
    return f"{words}; {remedy}" if remedy else words if fault is Fault.UNKNOWN else str(error)


def cause_of(error: Exception) -> str:
    """The same for the same cause, whichever attempt met it: names of files may hold an attempt."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return _remedy_of(error) or f"{type(error).__name__}: {error}"


def _fault_by_type(error: Exception) -> Fault:
    return next(fault for fault, errors in _TABLE if isinstance(error, errors))


def _remedy_of(error: Exception) -> str | None:
    """What mends the machine; None if it is not at fault, or the error's words have the remedy."""
    if not isinstance(error, OSError) and _fault_by_type(error) not in _OPEN:
        return None
    if isinstance(error, OSError) and error.errno:
        return _REMEDIES.get(error.errno, _ANOTHER_REMEDY)
    words = f"{type(error).__name__}: {error}"
    known = (remedy for said, remedy in _REMEDIES_BY_WORDS.items() if re.search(said, words, re.S))
    return next(known, _ANOTHER_REMEDY if isinstance(error, OSError) else None)
