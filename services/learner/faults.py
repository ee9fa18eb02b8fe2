"""Faults: the cause of an attempt's end, and the remedy. Pure."""

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

# The first row with the error's type counts. `Run.finish` says what each fault costs the job.
_FAULTS: tuple[tuple[Fault, tuple[type[Exception], ...]], ...] = (
    (Fault.NOBODY, (*Disconnected, Fenced, TeamBroken, RepeatNeeded)),
    (Fault.JOB, (JobFault, NotOnHub, TaskFileError, UnknownName, UnsupportedModel, Unworkable)),
    (Fault.MEMORY, (BatchTooLarge,)),
    (Fault.ENGINES, (EnginesFault,)),
    (Fault.MACHINE, (MachineFault, ModelNotFound, PlacementError, FrameError, WeightsError)),
    (Fault.MACHINE, (WorkerFault,)),
    (Fault.MACHINE, (MemoryError, OSError)),
    (Fault.UNKNOWN, (Exception,)),
)
# For these types the text of the error decides whether the machine is at fault.
_DECIDED_BY_TEXT = {Fault.NOBODY, Fault.UNKNOWN}
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
_OTHER_REMEDY = "see that the disk has space, or repair it or the connection to it"
# By a library's text or the name of its error. No pattern fits an error of a batch or a formula.
_REMEDIES_BY_TEXT = {
    r"MISCONF": "free space on Redis' disk, or see in its log why it cannot save",
    r"READONLY|ReadOnlyError": "name Redis' primary in WEIR_REDIS_URL, or end the failover",
    r"NOREPLICAS": "start Redis' replicas, or lower its min-replicas-to-write",
    r"CLUSTERDOWN|ClusterDownError": "repair the Redis cluster",
    r"NOPERM|NoPermissionError": "give the learner's user the rights it lacks (Redis' ACL)",
    r"WRONGPASS|NOAUTH|AuthenticationError": "give the learner Redis' password (WEIR_REDIS_URL)",
    r"start new thread|Resource temporarily": "raise the limit of threads (ulimit -u, pids_limit)",
    r"No space left on device": "free space on that disk, or give /dev/shm more (shm_size)",
    r"NCCL error(?!.*remote process)": "check GPUs, network and /dev/shm (NCCL_DEBUG=INFO helps)",
    r"libcuda\.so|NVIDIA driver|\.so[.\d]*: (?:cannot open shared|undefined symbol)": (
        "install a GPU driver and matching libraries, and give the learner its GPUs"
    ),
    r"CUDA error(?!: (?:device-side assert|\w+_(?:INVALID_VALUE|NOT_SUPPORTED)))|CUDA GPUs|cudaGet"
    r"|CUDA (?:driver|unknown)|\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INIT|MAPPING)": (
        "check the learner's GPU (nvidia-smi, dmesg), and restart it or its machine"
    ),
    r"C compiler|C\+\+ compile|Error building extension|Ninja is required|PTXAS error|CUDA_HOME"
    r"|(?:gcc|g\+\+|clang|nvcc|ninja|ptxas).*returned non-zero": (
        "repair the compiler of the learner's machine (gcc, ninja, Python's headers); see its log"
    ),
}


def classify_fault(error: Exception) -> Fault:
    fault = _fault_by_type(error)
    if fault in _DECIDED_BY_TEXT and _find_remedy(error):
        return Fault.MACHINE
    return fault


def describe_fault(error: Exception, place: str = "WEIR_DATA_DIR or WEIR_MEMORY_DIR") -> str:
    """Return the problem, and the remedy if it is known.

    Args:
        error: what ended an attempt.
        place: where the files are, for an error that names none, such as that of a full disk.
    """
    fault = classify_fault(error)
    remedy = _find_remedy(error)
    if fault is Fault.MACHINE and isinstance(error, MemoryError):
        return "the learner's machine is out of memory; free memory on it, or give it more"
    if isinstance(error, OSError):
        text = str(error) or type(error).__name__
        if error.errno is not None and not error.filename:
            text += f", below {place}"
        return f"{text}; {remedy}"
    if remedy:
        return f"{type(error).__name__}: {error}; {remedy}"
    return f"{type(error).__name__}: {error}" if fault is Fault.UNKNOWN else str(error)


def fault_key(error: Exception) -> str:
    """Return a text that is the same for the same cause in every attempt.

    Names of files may contain the attempt's number, so they are left out.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return _find_remedy(error) or f"{type(error).__name__}: {error}"


def _fault_by_type(error: Exception) -> Fault:
    return next(fault for fault, types in _FAULTS if isinstance(error, types))


def _find_remedy(error: Exception) -> str | None:
    """Return what repairs the machine; None if it is not at fault, or the error says it itself."""
    is_of_system = isinstance(error, OSError)
    if not is_of_system and _fault_by_type(error) not in _DECIDED_BY_TEXT:
        return None
    if is_of_system and error.errno:
        return _REMEDIES.get(error.errno, _OTHER_REMEDY)
    text = f"{type(error).__name__}: {error}"
    for pattern, remedy in _REMEDIES_BY_TEXT.items():
        if re.search(pattern, text, re.S):
            return remedy
    return _OTHER_REMEDY if is_of_system else None
