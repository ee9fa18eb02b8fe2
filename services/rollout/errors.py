"""What can go wrong between this service and its engine."""

from services.chassis.faults import Unworkable, WorkerFault


class EngineError(RuntimeError):
    """The engine could not do what was asked of it."""


class SamplingError(EngineError):
    """The engine ended a response in a way that is not an answer."""


class RequestRefused(EngineError, Unworkable):
    """The engine takes no such request, from anybody; the text has its own words."""


class LoadError(EngineError, WorkerFault):
    """New weights were not loaded; the engine samples nothing until a load succeeds."""


class EngineUnfit(EngineError, WorkerFault):
    """The weights belong into another engine; this process must end, to be started anew."""


class EngineDied(EngineError, WorkerFault):
    """A process of the engine has ended; this process must end, too, to be started anew."""
