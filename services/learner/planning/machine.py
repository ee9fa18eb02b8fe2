"""Where a job would run: the placement of its GPUs, and what the environment says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol import recipe

from deploy import placement as placements
from deploy.placement import Placement, PlacementError, Seat
from services.chassis.deployment import Deployment, DeploymentError
from services.learner.planning.footprint import GIB

T = TypeVar("T", int, float)
MOST = 2**20  # GiB of a GPU, or of anything: what is above is a mistake
_MOST_GPUS = 1024
_LARGEST_REDIS = 2**63
_ASSUMED_GIB = 80.0  # of a GPU of which nothing is said but that it is there
_CPU_CACHE_BYTES = 512 * 2**20  # of an engine that computes on a CPU, unless a size is set
_MOST_OF_A_HOST = 0.9  # the rest is for the system, for Redis and for what files leave in memory
_NO_LIMIT = 2**63
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": GIB}


class PlanError(ValueError):
    """An option or a variable that cannot be used; the text names it."""


@dataclass(frozen=True)
class Options:
    """What the command line says of a machine; None: nothing."""

    gpus: str | None = None  # a number, or a line as in WEIR_GPUS
    gpu_gib: float | None = None  # of a GPU
    host_gib: float | None = None  # of a node


@dataclass(frozen=True)
class Here:
    """What there is on this machine."""

    device_files: tuple[str, ...] = ()  # the names in /dev
    host_bytes: int | None = None
    gpu_bytes: int | None = None  # of its smallest GPU


@dataclass(frozen=True)
class Machine:
    """Where the job would run."""

    placement: Placement
    how: str  # the placement was decided
    gpu_bytes: int
    engine_share: float  # of the GPUs of an engine whose seat names no share
    engine_sequences: int  # sampled at the same time by one engine
    redis_bytes: int
    model_roots: tuple[Path, ...]
    model_hub: bool
    engine_cache_bytes: int = 0  # of keys and values on each GPU; 0: what the share leaves
    host_bytes: int | None = None  # of a node; None: not known

    @property
    def on_cpus(self) -> bool:
        """Whether nothing computes on a GPU."""
        return not self.placement.uses_gpus

    @property
    def usable_host_bytes(self) -> int:
        """What the job may use of a node's own memory."""
        return _NO_LIMIT if self.host_bytes is None else int(self.host_bytes * _MOST_OF_A_HOST)

    @property
    def ranks_of_node(self) -> int:
        """Ranks of the learner on the node that has most of them."""
        return max(seat.ranks for seat in self.placement.learner)

    @property
    def learner_gpus(self) -> int:
        """GPUs of the learner, one per rank."""
        return self.placement.num_ranks

    @property
    def learner_bytes(self) -> int:
        """What a rank may use of its GPU, where the engines leave it least; else of the host."""
        if self.on_cpus:
            return self.usable_host_bytes
        gpus = [gpu for seat in self.placement.learner for gpu in seat.gpus]
        return int(self.gpu_bytes * min(map(self.placement.learner_share, gpus)))

    @property
    def shares_a_gpu(self) -> bool:
        """Whether the learner and an engine compute on the same GPU."""
        learner = {gpu for seat in self.placement.learner for gpu in seat.gpus}
        return any(learner.intersection(engine.gpus) for engine in self.placement.rollouts)

    @property
    def num_engines(self) -> int:
        """How many engines sample."""
        return len(self.placement.rollouts)

    @property
    def engine(self) -> Seat:
        """The smallest engine: the one that a plan is about."""
        return min(self.placement.rollouts, key=lambda seat: (len(seat.gpus), self.share_of(seat)))

    @property
    def gpus_per_engine(self) -> int:
        """The smallest engine's model is split over so many."""
        return max(1, len(self.engine.gpus))

    @property
    def engine_bytes(self) -> int:
        """What the smallest engine may use of each of its GPUs; without one of the host.

        Its share; all of a GPU of its own if its cache has a size, as vLLM then has no limit.
        """
        if self.on_cpus:
            return self.usable_host_bytes
        alone = self.engine_cache_bytes and self.engine.share is None
        return int(self.gpu_bytes * (1.0 if alone else self.share_of(self.engine)))

    def share_of(self, engine: Seat) -> float:
        """The part that an engine may take of each of its GPUs."""
        return self.engine_share if engine.share is None else engine.share


def machine_of(
    options: Options,
    named: recipe.Machine | None,
    environment: Mapping[str, str],
    here: Here,
) -> Machine:
    """The machine of the options; what they leave open is as the deployment has it.

    Without GPUs here it is the machine that the recipe names, else the CPUs that there are.

    Args:
        options: of the command line.
        named: the recipe's.
        environment: the variables of the stack.
        here: what this machine has.

    Raises:
        PlanError: naming the variable, option or setting that is wrong.
    """
    placement, how, is_here = _placement(options.gpus, named, environment, here)
    read = _Variables(environment)
    deployment = _deployment(environment)
    cache = read("WEIR_ROLLOUT_KV_CACHE_MIB", int, "0", least=0) * 2**20
    return Machine(
        placement=placement,
        how=how,
        gpu_bytes=_gpu_bytes(options, named, here if is_here else Here()),
        engine_share=read("WEIR_ROLLOUT_GPU_MEMORY", float, "0.9", most=1.0),
        engine_sequences=read("WEIR_ROLLOUT_MAX_SEQUENCES", int, "256"),
        redis_bytes=read("WEIR_REDIS_MAXMEMORY", redis_size, "1gb", most=_LARGEST_REDIS),
        model_roots=deployment.model_roots,
        model_hub=deployment.model_hub,
        engine_cache_bytes=cache or (0 if placement.uses_gpus else _CPU_CACHE_BYTES),
        host_bytes=_host_bytes(options, named, here if is_here else Here()),
    )


def redis_size(text: str) -> int:
    """A number of bytes as Redis writes it.

    >>> redis_size("2mb"), redis_size("5")
    (2097152, 5)
    """
    match = re.fullmatch(r"(\d+)([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]


def _placement(
    gpus: str | None, named: recipe.Machine | None, environment: Mapping[str, str], here: Here
) -> tuple[Placement, str, bool]:
    """Who has which GPU, how that was decided, and whether they are this machine's."""
    line = environment.get("WEIR_GPUS")
    if gpus is not None:
        number = _number_of_gpus(gpus)
        if number is None:
            return _parsed(gpus, "--gpus: "), "as --gpus says", False
        return placements.divide(number), f"as divided for --gpus {number}", False
    if line:  # of a box that may not be this machine
        return _parsed(line, ""), "as WEIR_GPUS says", bool(here.gpu_bytes)
    try:
        choice = placements.choose(environment, here.device_files)
    except PlacementError as error:
        raise PlanError(str(error)) from error
    if named is not None and not choice.visible:
        return _parsed(named.gpus, "machine.gpus: "), "as the recipe's [machine] says", False
    return choice.placement, choice.how, True


def _parsed(line: str, source: str) -> Placement:
    try:
        return placements.parse(line)
    except PlacementError as error:
        raise PlanError(f"{source}{error}") from error


def _gpu_bytes(options: Options, named: recipe.Machine | None, here: Here) -> int:
    if options.gpu_gib is None and here.gpu_bytes is not None:
        return here.gpu_bytes
    said = options.gpu_gib or (named.gpu_memory if named is not None else _ASSUMED_GIB)
    return int(said * GIB)


def _host_bytes(options: Options, named: recipe.Machine | None, here: Here) -> int | None:
    if options.host_gib is None and here.host_bytes is not None:
        return here.host_bytes
    said = options.host_gib or (named.host_memory if named is not None else None)
    return None if said is None else int(said * GIB)


def _number_of_gpus(text: str) -> int | None:
    """The number that ``--gpus`` gives; None if it gives a line."""
    if not re.fullmatch(r"[+-]?\d+", text):
        return None
    number = int(text)
    if not 0 < number <= _MOST_GPUS:
        raise PlanError(f"--gpus {text}: must be above 0 and at most {_MOST_GPUS:,}")
    return number


@dataclass(frozen=True)
class _Variables:
    environment: Mapping[str, str]

    def __call__(
        self,
        name: str,
        parse: Callable[[str], T],
        default: str,
        *,
        least: int | None = None,
        most: float = MOST,
    ) -> T:
        """The number of a variable: above 0, or from ``least`` on, and at most ``most``."""
        text = self.environment.get(name) or default
        try:
            value = parse(text)
        except ValueError as error:
            raise PlanError(f"{name}={text!r}: give a number, such as {default}") from error
        in_range = 0 < value <= most if least is None else least <= value <= most
        if not in_range:
            lower = "above 0" if least is None else f"at least {least}"
            raise PlanError(f"{name}={text!r}: must be {lower} and at most {most:,}")
        return value


def _deployment(environment: Mapping[str, str]) -> Deployment:
    """Where the models are, by the job's own rules; what a plan does not need may be missing."""
    unused = {"WEIR_REDIS_URL": "redis://", "WEIR_DATA_DIR": ".", "WEIR_PORT": "0"}
    try:
        return Deployment.from_environment(unused | {k: v for k, v in environment.items() if v})
    except DeploymentError as error:
        raise PlanError(str(error)) from error
