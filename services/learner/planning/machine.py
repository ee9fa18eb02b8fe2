"""The machine of a job: the placement of its GPUs, their memory and the settings of engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol import placement as placements
from protocol import recipe
from protocol.placement import Bundle, Gpu, Placement, PlacementError

from services.chassis.deployment import Reader, model_sources, parse_positive, parse_whole
from services.learner.planning.units import GIB

MAX_GPUS = 1024
_DEFAULT_GPU_BYTES = 80 * GIB  # if neither a driver, an option nor a recipe states it
_CPU_CACHE_BYTES = 512 * 2**20  # keys and values of an engine on CPUs, if no size is set
_USABLE_HOST_SHARE = 0.9  # the rest is for the system, Redis and the page cache
_NO_LIMIT = 2**63
# vLLM samples this many sequences at once by default: the larger number from 70 GiB on. On an A100
# with 80 GiB it would be the smaller one.
_LARGE_GPU_BYTES = 70 * GIB
_LARGE_GPU_SEQUENCES = 1024
_SEQUENCES = 256
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": GIB}


@dataclass(frozen=True)
class GpuKind:
    """The speed and memory of a GPU, from its data sheet."""

    name: str
    gib: int
    flops: float  # FLOP/s of dense bfloat16 with float32 sums
    bandwidth: float  # of its memory, bytes/s
    devices: tuple[str, ...]  # names that a driver reports


_A100 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
KINDS = (
    GpuKind("RTX 4090", 24, 165e12, 1.008e12, ("NVIDIA GeForce RTX 4090",)),
    GpuKind("A100 SXM 40", 40, 312e12, 1.555e12, _A100),
    GpuKind("H100 SXM", 80, 989e12, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    GpuKind("H200", 141, 989e12, 4.8e12, ("NVIDIA H200",)),
)


def peak_flops(device: str) -> float | None:
    """Return the FLOP/s in bfloat16 of a GPU, by its driver's name; None if it is unknown."""
    return next((kind.flops for kind in KINDS if device in kind.devices), None)


def gpu_bytes(device: str) -> int:
    """Return the memory of a GPU, by its driver's name; 0 if it is unknown."""
    return next((kind.gib * GIB for kind in KINDS if device in kind.devices), 0)


@dataclass(frozen=True)
class Options:
    """A machine as the command line describes it."""

    gpus: str | None = None  # a number, or a line as in WEIR_GPUS
    gpu_gib: float | None = None
    host_gib: float | None = None  # memory of a node
    flops_used: float | None = None


@dataclass(frozen=True)
class LocalMachine:
    device_files: tuple[str, ...] = ()  # names in /dev
    host_bytes: int | None = None
    gpu_bytes: int | None = None  # of the smallest GPU


@dataclass(frozen=True)
class Machine:
    """The machine that a plan is about."""

    placement: Placement
    gpu_bytes: int
    how: str = "as named"  # how the placement was decided
    engine_share: float = 0.9  # of a GPU, for an engine without a share in the placement
    engine_sequences: int = _SEQUENCES  # that an engine samples at the same time
    redis_bytes: int = GIB
    model_roots: tuple[Path, ...] = ()
    model_hub: bool = False
    engine_cache_bytes: int = 0  # keys and values on each GPU; 0: the rest of the share
    host_bytes: int | None = None  # of a node; None: unknown
    flops_used: float | None = None  # share of the peak while training; None: not measured

    @property
    def on_cpus(self) -> bool:
        return not self.placement.uses_gpus

    @property
    def kind(self) -> GpuKind:
        """The kind of GPU with the nearest memory."""
        return min(KINDS, key=lambda kind: abs(kind.gib * GIB - self.gpu_bytes))

    @property
    def usable_host_bytes(self) -> int:
        return _NO_LIMIT if self.host_bytes is None else int(self.host_bytes * _USABLE_HOST_SHARE)

    @property
    def ranks_of_node(self) -> int:
        """Ranks of the learner on the node with the most of them."""
        return max(bundle.ranks for bundle in self.placement.learner)

    @property
    def learner_bytes(self) -> int:
        """Bytes that a rank may use of its GPU, next to the engines; on CPUs: of the host."""
        if self.on_cpus:
            return self.usable_host_bytes
        return int(self.gpu_bytes * min(map(self.placement.learner_share, self._learner_gpus)))

    @property
    def learner_bytes_at_rest(self) -> int:
        """`learner_bytes` between the learner's turns, while the engines are awake."""
        if self.on_cpus:
            return self.usable_host_bytes
        share = min(self.placement.learner_share(gpu, at_rest=True) for gpu in self._learner_gpus)
        return int(self.gpu_bytes * share)

    @property
    def takes_turns(self) -> bool:
        return any(bundle.turns for bundle in self.placement.learner)

    @property
    def shares_a_gpu(self) -> bool:
        return any(
            self._learner_gpus.intersection(bundle.gpus) for bundle in self.placement.rollouts
        )

    @property
    def engine(self) -> Bundle:
        """The smallest engine, which a plan is about."""
        engines = self.placement.rollouts
        return min(engines, key=lambda engine: (len(engine.gpus), self.engine_part(engine)))

    @property
    def gpus_per_engine(self) -> int:
        return max(1, len(self.engine.gpus))

    @property
    def engine_bytes(self) -> int:
        """Bytes that the smallest engine may use of each of its GPUs; on CPUs: of the host."""
        if self.on_cpus:
            return self.usable_host_bytes
        # vLLM may use a whole GPU if its cache has a fixed size.
        is_unlimited = self.engine_cache_bytes and self.engine.share is None
        return int(self.gpu_bytes * (1.0 if is_unlimited else self.engine_part(self.engine)))

    def engine_part(self, engine: Bundle) -> float:
        """Return the part of a GPU that an engine may use."""
        return self.engine_share if engine.share is None else engine.share

    @property
    def _learner_gpus(self) -> set[Gpu]:
        return {gpu for bundle in self.placement.learner for gpu in bundle.gpus}


def resolve_machine(
    options: Options,
    recipe_machine: recipe.Machine | None,
    environment: Mapping[str, str],
    local: LocalMachine,
) -> Machine:
    """Return the machine of the options, and for the rest that of the deployment.

    Without local GPUs it is the recipe's machine, or else the local CPUs.

    Raises:
        PlacementError: naming the option, variable or setting with a wrong placement.
        DeploymentError: naming the variable that is wrong.
    """
    placement, how, is_local = _resolve_placement(options.gpus, recipe_machine, environment, local)
    if not is_local:
        local = LocalMachine()
    gpu_gib = host_gib = None
    if recipe_machine is not None:
        gpu_gib = recipe_machine.gpu_memory
        host_gib = recipe_machine.host_memory
    gpu_bytes = _memory(options.gpu_gib, local.gpu_bytes, gpu_gib) or _DEFAULT_GPU_BYTES
    sequences = _SEQUENCES
    if placement.uses_gpus and gpu_bytes >= _LARGE_GPU_BYTES:
        sequences = _LARGE_GPU_SEQUENCES
    read = Reader(environment)
    cache_bytes = read("WEIR_ROLLOUT_KV_CACHE_MIB", parse_whole, "0") * 2**20
    model_roots, model_hub = model_sources(environment)
    return Machine(
        placement=placement,
        how=how,
        gpu_bytes=gpu_bytes,
        engine_share=read("WEIR_ROLLOUT_GPU_MEMORY", parse_part, "0.9"),
        engine_sequences=read("WEIR_ROLLOUT_MAX_SEQUENCES", parse_whole, "0") or sequences,
        redis_bytes=read("WEIR_REDIS_MAXMEMORY", parse_redis_size, "1gb"),
        model_roots=model_roots,
        model_hub=model_hub,
        engine_cache_bytes=cache_bytes or (0 if placement.uses_gpus else _CPU_CACHE_BYTES),
        host_bytes=_memory(options.host_gib, local.host_bytes, host_gib),
        flops_used=options.flops_used,
    )


def _resolve_placement(
    gpus: str | None,
    recipe_machine: recipe.Machine | None,
    environment: Mapping[str, str],
    local: LocalMachine,
) -> tuple[Placement, str, bool]:
    """Return the placement, how it was decided, and whether its GPUs are on this machine."""
    if gpus is not None:
        if re.fullmatch(r"[+-]?\d+", gpus) is None:
            return _parse("--gpus", gpus), "as --gpus says", False
        number = int(gpus)
        if not 0 < number <= MAX_GPUS:
            raise PlacementError(f"--gpus must be above 0 and at most {MAX_GPUS:,}, got {gpus}")
        return placements.divide(number), f"as divided for --gpus {number}", False
    if line := environment.get("WEIR_GPUS"):  # perhaps about another machine
        return placements.parse(line), "as WEIR_GPUS says", bool(local.gpu_bytes)
    choice = placements.choose(environment, local.device_files)
    gpus = recipe_machine and recipe_machine.gpus
    if gpus and not choice.visible:
        placement = _parse("machine.gpus", gpus)
        return placement, "as the recipe's [machine] says", False
    return choice.placement, choice.how, True


def _parse(source: str, line: str) -> Placement:
    try:
        return placements.parse(line)
    except PlacementError as error:
        raise PlacementError(f"{source}: {error}") from error


def _memory(option: float | None, local: int | None, recipe_gib: float | None) -> int | None:
    """Return the bytes of the option in GiB, else of this machine, else of the recipe in GiB."""
    if option is None and local is not None:
        return local
    gib = option or recipe_gib
    return None if gib is None else int(gib * GIB)


def parse_part(text: str) -> float:
    share = parse_positive(text)
    if share > 1:
        raise ValueError("give a part of a GPU, at most 1")
    return share


def parse_redis_size(text: str) -> int:
    """Read bytes above 0 in the notation of Redis.

    >>> parse_redis_size("2mb"), parse_redis_size("5")
    (2097152, 5)
    """
    match = re.fullmatch(r"0*([1-9]\d*)([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("give a number of bytes, such as 1gb")
    return int(match[1]) * _UNITS[match[2]]
