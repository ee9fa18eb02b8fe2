"""Whose fault it was that an entry could not be worked on: what a worker's ``handle`` may raise."""


class Unworkable(ValueError):
    """An entry that no worker can work on; the text says why."""


class UnsupportedEntry(RuntimeError):
    """An entry that this worker will never be able to work on, though another one may be."""


class Busy(Exception):
    """An entry that this worker leaves to others for the time being."""


class WorkerFault(RuntimeError):
    """A part of the worker failed, through no fault of the entry in hand."""


class WorkerBroken(WorkerFault):
    """Everything fails in this worker; its process must end, to be started anew."""


class RestartRequired(WorkerFault):
    """Another process must do what comes next; this one ends in good order, to be restarted."""


class StartupFailed(WorkerFault):
    """What the worker needs for a job does not start; the text says why."""

    def __init__(self, why: str, job_id: str) -> None:
        super().__init__(why)
        self.job_id = job_id
