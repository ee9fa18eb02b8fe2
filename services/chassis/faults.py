"""The exceptions by which ``handle`` says whose fault it is that an entry was not processed."""


class Unworkable(ValueError):
    """No worker can process the entry; the text says why."""


class UnsupportedEntry(RuntimeError):
    """This worker can never process the entry, but another may."""


class Busy(Exception):
    """This worker cannot process the entry now; others may."""


class WorkerFault(RuntimeError):
    """A part of the worker failed; the entry is not at fault."""


class WorkerBroken(WorkerFault):
    """Every entry fails in this worker; its process must be restarted."""


class RestartRequired(WorkerFault):
    """Only a new process can continue; this one ends in good order."""


class StartupFailed(WorkerFault):
    """A part that the worker needs for a job does not start; the text says why."""

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id
