"""What can go wrong between this service and its engine."""


class EngineError(RuntimeError):
    """The engine could not do what was asked of it."""


class SamplingError(EngineError):
    """The engine ended a response in a way that is not an answer."""


class LoadError(EngineError):
    """New weights were not loaded; the engine samples nothing until a load succeeds."""


class EngineUnfit(EngineError):
    """The weights belong into another engine; this process must end, to be started anew."""


class EngineDied(EngineError):
    """A process of the engine has ended; this process must end, too, to be started anew."""


class PolicyTooOld(RuntimeError):
    """No policy that may answer a request was announced in time."""
