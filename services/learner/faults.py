"""Whose fault it was that an attempt at a job ended, and so who pays for it. Pure."""

from __future__ import annotations

import errno

from protocol.exchange import Disconnected, Fenced
from protocol.frames import FrameError
from protocol.messages import Fault
from protocol.tasks import TaskFileError
from protocol.weights import WeightsError

from deploy.placement import PlacementError
from services.learner.algorithms import UnknownName
from services.learner.attempt import EnginesFault, JobFault, MachineFault
from services.learner.model_source import ModelNotFound, NotOnHub
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.ranks import BatchTooLarge, TeamBroken

# The first row counts that has the error. What each fault costs the job, and what people hear of
# it, is in `Run.end_by`.
_TABLE: tuple[tuple[Fault, tuple[type[Exception], ...]], ...] = (
    (Fault.NOBODY, (*Disconnected, Fenced, TeamBroken)),
    (Fault.JOB, (JobFault, NotOnHub, TaskFileError, UnknownName, UnsupportedModel)),
    (Fault.MEMORY, (BatchTooLarge,)),
    (Fault.ENGINES, (EnginesFault,)),
    (Fault.MACHINE, (MachineFault, ModelNotFound, PlacementError, FrameError, WeightsError)),
    (Fault.MACHINE, (MemoryError, OSError)),  # whose words lack the remedy
    (Fault.UNKNOWN, (Exception,)),
)
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


def fault_of(error: Exception) -> Fault:
    return next(fault for fault, errors in _TABLE if isinstance(error, errors))


def words_of(error: Exception, place: str = "WEIR_DATA_DIR or WEIR_MEMORY_DIR") -> str:
    """What is wrong, and the remedy as far as it is known.

    Args:
        error: what ended an attempt.
        place: what an error that names no file was about, as that of a full disk.
    """
    fault = fault_of(error)
    if fault is Fault.UNKNOWN:
        return f"{type(error).__name__}: {error}"
    if fault is Fault.MACHINE and isinstance(error, MemoryError):
        return "the learner's machine is out of memory; free memory on it, or give it more"
    if fault is not Fault.MACHINE or not isinstance(error, OSError):
        return str(error)
    place = "" if error.filename or error.errno is None else f", below {place}"
    remedy = _REMEDIES.get(error.errno or 0, _ANOTHER_REMEDY)
    return f"{str(error) or type(error).__name__}{place}; {remedy}"


def cause_of(error: Exception) -> str:
    """The same for the same cause, whichever attempt met it: names of files may hold an attempt."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return f"{type(error).__name__}: {error}"
