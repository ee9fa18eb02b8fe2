"""Where a job would run: the placement of its GPUs, and what the environment says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol import placement as placements
from protocol import recipe
from protocol.placement import Bundle, Gpu, Placement, PlacementError

from services.chassis.deployment import Reader, model_sources, parse_positive, parse_whole

GIB = 2**30
MOST_GPUS = 1024
_ASSUMED_GPU = 80 * GIB  # where nothing tells the memory of a GPU
_CPU_CACHE_BYTES = 512 * 2**20  # of an engine that computes on a CPU, unless a size is set
_MOST_OF_A_HOST = 0.9  # the rest is for the system, for Redis and for what files leave in memory
_NO_LIMIT = 2**63
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": GIB}


@dataclass(frozen=True)
class GpuKind:
    """What a kind of GPU can do, from its data sheet."""

    name: str
    gib: int
    flops: float  # a second, dense bfloat16 with sums in float32
    bandwidth: float  # of its memory, bytes a second
    devices: tuple[str, ...]  # the names by which a driver calls it


_A100 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
KINDS = (
    GpuKind("RTX 4090", 24, 165e12, 1.008e12, ("NVIDIA GeForce RTX 4090",)),
    GpuKind("A100 SXM 40", 40, 312e12, 1.555e12, _A100),
    GpuKind("H100 SXM", 80, 989e12, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    GpuKind("H200", 141, 989e12, 4.8e12, ("NVIDIA H200",)),
)


def peak_flops(device: str) -> float | None:
    """FLOPs a second in bfloat16 of a GPU, by its driver's name for it; None: not known."""
    return next((kind.flops for kind in KINDS if device in kind.devices), None)


@dataclass(frozen=True)
class Options:
    """What the command line says of a machine."""

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
    gpu_bytes: int
    how: str = "as named"  # the placement was decided
    engine_share: float = 0.9  # of the GPUs of an engine whose bundle names no share
    engine_sequences: int = 256  # sampled at the same time by one engine
    redis_bytes: int = GIB
    model_roots: tuple[Path, ...] = ()
    model_hub: bool = False
    engine_cache_bytes: int = 0  # of keys and values on each GPU; 0: what the share leaves
    host_bytes: int | None = None  # of a node; None: not known

    @property
    def on_cpus(self) -> bool:
        return not self.placement.uses_gpus

    @property
    def kind(self) -> GpuKind:
        """The kind of the table whose memory comes nearest."""
        return min(KINDS, key=lambda kind: abs(kind.gib * GIB - self.gpu_bytes))

    @property
    def usable_host_bytes(self) -> int:
        return _NO_LIMIT if self.host_bytes is None else int(self.host_bytes * _MOST_OF_A_HOST)

    @property
    def ranks_of_node(self) -> int:
        """Ranks of the learner on the node that has most of them."""
        return max(bundle.ranks for bundle in self.placement.learner)

    @property
    def learner_bytes(self) -> int:
        """What a rank may use of its GPU, where the engines leave it least; else of the host."""
        if self.on_cpus:
            return self.usable_host_bytes
        return int(self.gpu_bytes * min(map(self.placement.learner_share, self._of_learner)))

    @property
    def learner_bytes_at_rest(self) -> int:
        """The same between the turns that it takes with engines, while they are awake."""
        if self.on_cpus:
            return self.usable_host_bytes
        share = min(self.placement.learner_share(gpu, at_rest=True) for gpu in self._of_learner)
        return int(self.gpu_bytes * share)

    @property
    def takes_turns(self) -> bool:
        return any(bundle.turns for bundle in self.placement.learner)

    @property
    def shares_a_gpu(self) -> bool:
        return any(self._of_learner.intersection(bundle.gpus) for bundle in self.placement.rollouts)

    @property
    def engine(self) -> Bundle:
        """The smallest engine: the one that a plan is about."""
        return min(self.placement.rollouts, key=lambda e: (len(e.gpus), self.share_of(e)))

    @property
    def gpus_per_engine(self) -> int:
        return max(1, len(self.engine.gpus))

    @property
    def engine_bytes(self) -> int:
        """What the smallest engine may use of each of its GPUs; without one of the host."""
        if self.on_cpus:
            return self.usable_host_bytes
        # On a GPU of its own vLLM has no limit where its cache has a size.
        alone = self.engine_cache_bytes and self.engine.share is None
        return int(self.gpu_bytes * (1.0 if alone else self.share_of(self.engine)))

    def share_of(self, engine: Bundle) -> float:
        return self.engine_share if engine.share is None else engine.share

    @property
    def _of_learner(self) -> set[Gpu]:
        return {gpu for bundle in self.placement.learner for gpu in bundle.gpus}


def machine_of(
    options: Options, named: recipe.Machine | None, environment: Mapping[str, str], here: Here
) -> Machine:
    """The machine of the options; what they leave open is as the deployment has it.

    Without GPUs here it is the machine that the recipe names, else the CPUs that there are.

    Raises:
        PlacementError: naming the option, variable or setting whose GPUs cannot be.
        DeploymentError: naming a variable that is wrong.
    """
    placement, how, is_here = _placement(options.gpus, named, environment, here)
    if not is_here:
        here = Here()
    gpu_gib, host_gib = (named.gpu_memory, named.host_memory) if named else (None, None)
    gpu_bytes = _bytes(options.gpu_gib, here.gpu_bytes, gpu_gib) or _ASSUMED_GPU
    # vLLM's own default; on an A100 it would be 256.
    by_default = 1024 if placement.uses_gpus and gpu_bytes >= 70 * GIB else 256
    read = Reader(environment)
    cache = read("WEIR_ROLLOUT_KV_CACHE_MIB", parse_whole, "0") * 2**20
    model_roots, model_hub = model_sources(environment)
    return Machine(
        placement=placement,
        how=how,
        gpu_bytes=gpu_bytes,
        engine_share=read("WEIR_ROLLOUT_GPU_MEMORY", _part, "0.9"),
        engine_sequences=read("WEIR_ROLLOUT_MAX_SEQUENCES", parse_whole, "0") or by_default,
        redis_bytes=read("WEIR_REDIS_MAXMEMORY", redis_size, "1gb"),
        model_roots=model_roots,
        model_hub=model_hub,
        engine_cache_bytes=cache or (0 if placement.uses_gpus else _CPU_CACHE_BYTES),
        host_bytes=_bytes(options.host_gib, here.host_bytes, host_gib),
    )


def _placement(
    gpus: str | None, named: recipe.Machine | None, environment: Mapping[str, str], here: Here
) -> tuple[Placement, str, bool]:
    """Who has which GPU, how that was decided, and whether they are this machine's."""
    if gpus is not None and re.fullmatch(r"[+-]?\d+", gpus):
        number = int(gpus)
        if not 0 < number <= MOST_GPUS:
            raise PlacementError(f"--gpus {gpus}: must be above 0 and at most {MOST_GPUS:,}")
        return placements.divide(number), f"as divided for --gpus {number}", False
    if gpus is not None:
        return _parsed(gpus, "--gpus"), "as --gpus says", False
    line = environment.get("WEIR_GPUS")
    if line:  # of a box that may not be this machine
        return placements.parse(line), "as WEIR_GPUS says", bool(here.gpu_bytes)
    choice = placements.choose(environment, here.device_files)
    if named is not None and not choice.visible:
        return _parsed(named.gpus, "machine.gpus"), "as the recipe's [machine] says", False
    return choice.placement, choice.how, True


def _parsed(line: str, source: str) -> Placement:
    try:
        return placements.parse(line)
    except PlacementError as error:
        raise PlacementError(f"{source}: {error}") from error


def _bytes(asked: float | None, here: int | None, named: float | None) -> int | None:
    """The GiB that an option asks for, else what is here, else the GiB of the recipe."""
    if asked is None and here is not None:
        return here
    gib = asked or named
    return None if gib is None else int(gib * GIB)


def _part(text: str) -> float:
    share = parse_positive(text)
    if share > 1:
        raise ValueError("give a part of a GPU, at most 1")
    return share


def redis_size(text: str) -> int:
    """Bytes above 0, as Redis writes them.

    >>> redis_size("2mb"), redis_size("5")
    (2097152, 5)
    """
    match = re.fullmatch(r"0*([1-9]\d*)([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("give a number of bytes, such as 1gb")
    return int(match[1]) * _UNITS[match[2]]
