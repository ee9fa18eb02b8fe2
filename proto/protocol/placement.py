"""Placement of services on GPUs by the line WEIR_GPUS, for processes, compose and Ray. Pure.

::

    learner=0-3 rollout=4,5 rollout=6,7        two engines, each split over two GPUs
    learner=0 rollout=1 judge=2 idle=3         a judge in the stack
    learner=0 rollout=0@0.4                    shared: the engine takes 40 % of GPU 0
    learner=0 rollout=0@0.5:turns              in turns: the engine sleeps while the learner works
    learner=a:0-7,b:0-7 rollout=c:0-3 idle=c:4-7      on the nodes a, b and c of a Ray cluster

The learner has one rank per GPU. Each ``rollout=`` is one engine with tensor parallelism over its
GPUs. GPU numbers start at 0 and count the visible GPUs (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ENGINES = ("rollout", "judge")
_BUNDLE = re.compile(
    r"(?P<role>learner|rollout|judge|idle)=(?P<gpus>[^@]+)"
    r"(?:@(?P<share>0?\.\d+)(?P<turns>:turns)?)?"
)
_GPUS = re.compile(r"(?:(?P<node>[\w.-]+):)?(?P<first>\d{1,4})(?:-(?P<last>\d{1,4}))?")
_EXAMPLE = "WEIR_GPUS='learner=0-3 rollout=4,5 rollout=6,7'"
# Default shares of a GPU's memory: of engine and judge without and with the learner on the GPU, and
# of an engine in turns with the learner, while it is awake.
_SHARES_WITHOUT_LEARNER = (0.5, 0.4)
_SHARES_WITH_LEARNER = (0.3, 0.3)
_SHARE_IN_TURNS = 0.5
_CPU_COUNTS = ("WEIR_LEARNER_RANKS", "WEIR_ROLLOUTS")
SLEEPING_SHARE = 0.03  # of a GPU, for the CUDA context and graphs of a sleeping engine; assumed
MAX_GPU_SHARE = 0.9  # of a GPU, for all processes together; CUDA takes the remainder
_MIN_LEARNER_SHARE = 0.1
THIS_MACHINE = ""
_SYNTAX = (
    "ROLE=GPUS: roles are learner, rollout, judge and idle, GPUs 0 or 0,2 or 0-3, on a node a:0-3; "
    f"a rollout or judge may add @SHARE, above 0 and at most {MAX_GPU_SHARE}, and a rollout on the "
    "learner's GPU @SHARE:turns"
)


class PlacementError(ValueError):
    """An invalid placement; the text names every problem and its remedy."""


@dataclass(frozen=True, order=True)
class Gpu:
    """A GPU of a node; the node ``""`` is this machine."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}" if self.node else str(self.index)


@dataclass(frozen=True)
class Bundle:
    """The GPUs of one launch: a learner's ranks on one node, or one engine."""

    role: str
    gpus: tuple[Gpu, ...] = ()  # empty: it runs on CPUs
    share: float | None = None  # of each GPU's memory, for an engine; None: most of it
    ranks: int = 1  # processes; 1 for an engine
    turns: tuple[Gpu, ...] = ()  # GPUs that learner and engine use in turns

    @property
    def node(self) -> str:
        return self.gpus[0].node if self.gpus else THIS_MACHINE

    def __str__(self) -> str:
        share = "" if self.share is None else f"@{self.share:g}{':turns' * bool(self.turns)}"
        return f"{self.role}={_ranges(self.gpus)}{share}"


@dataclass(frozen=True)
class Placement:
    """The bundles of the learner, one per node, of sampling engines, and of a judge."""

    learner: tuple[Bundle, ...]
    rollouts: tuple[Bundle, ...]
    judge: Bundle | None = None
    idle: tuple[Gpu, ...] = ()

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return (*self.learner, *self.rollouts, *([self.judge] if self.judge else []))

    @property
    def num_ranks(self) -> int:
        """Ranks of the learner, over all nodes."""
        return sum(bundle.ranks for bundle in self.learner)

    @property
    def uses_gpus(self) -> bool:
        return any(bundle.gpus for bundle in self.bundles)

    def learner_share(self, gpu: Gpu, *, at_rest: bool = False) -> float:
        """Return the share of a GPU that engines leave to the learner, in its turns or at rest."""
        engines_share = 0.0
        for bundle in self.bundles:
            if bundle.role not in ENGINES or gpu not in bundle.gpus:
                continue
            is_asleep = bundle.turns and not at_rest
            engines_share += SLEEPING_SHARE if is_asleep else bundle.share or 0.0
        return MAX_GPU_SHARE - engines_share

    def __str__(self) -> str:
        words = [f"learner={_ranges(gpu for bundle in self.learner for gpu in bundle.gpus)}"]
        words += [str(bundle) for bundle in self.bundles if bundle.role in ENGINES]
        if self.idle:
            words.append(f"idle={_ranges(self.idle)}")
        return " ".join(words)


def parse(line: str, available: Mapping[str, int] | None = None) -> Placement:
    """Parse a line; a PlacementError names all its problems.

    ``available`` is the number of GPUs per node, ``{"": 8}`` for this machine. None means that the
    GPUs are unknown, so that all GPUs of the line exist.
    """
    bundles: list[Bundle] = []
    problems: list[str] = []
    for word in line.split():
        bundle = _parse_bundle(word)
        if bundle is not None:
            bundles.append(bundle)
        else:
            problems.append(f"{word!r} is not {_SYNTAX}")
    if not problems:
        problems += _role_problems(bundles)
        problems += _node_problems(bundles)
        problems += _share_problems(bundles)
        if available is None:
            available = _count_named_gpus(bundles)
        problems += _availability_problems(bundles, available)
    if problems:
        raise PlacementError(f"WEIR_GPUS={line!r}: {'; '.join(problems)}. Example: {_EXAMPLE}")
    turns = {gpu for bundle in bundles for gpu in bundle.turns}
    by_role: dict[str, list[Bundle]] = defaultdict(list)
    for bundle in bundles:
        by_role[bundle.role].append(bundle)
    learner = [gpu for bundle in by_role["learner"] for gpu in bundle.gpus]
    return Placement(
        learner=tuple(_learner_bundles(learner, turns)),
        rollouts=tuple(by_role["rollout"]),
        judge=by_role["judge"][0] if by_role["judge"] else None,
        idle=tuple(gpu for bundle in by_role["idle"] for gpu in bundle.gpus),
    )


def divide(available: int | Mapping[str, int], *, judge: bool = False) -> Placement:
    """Return the default placement for this machine's GPUs, or for those of each node.

    Half of the GPUs are the learner's; each other GPU has an engine. A single GPU is shared. A
    judge has the last GPU; it shares one of two with the engine, and a single GPU with both.
    """
    nodes = {THIS_MACHINE: available} if isinstance(available, int) else available
    gpus = [Gpu(node, index) for node, number in nodes.items() for index in range(number)]
    half = len(gpus) // 2
    share = None if half else _SHARE_IN_TURNS
    turns = () if half else tuple(gpus)
    engines = [Bundle("rollout", (gpu,), share, turns=turns) for gpu in gpus[half:]]
    learner = tuple(_learner_bundles(gpus[: max(1, half)], turns))
    if not judge:
        return Placement(learner, tuple(engines))
    if len(engines) > 1:
        return Placement(learner, tuple(engines[:-1]), replace(engines[-1], role="judge"))
    engine_share, judge_share = _SHARES_WITHOUT_LEARNER if half else _SHARES_WITH_LEARNER
    engine = replace(engines[-1], share=engine_share)
    return Placement(learner, (engine,), Bundle("judge", engine.gpus, judge_share))


def on_cpus(environment: Mapping[str, str]) -> Placement:
    """Return a placement without GPUs; the environment has the numbers of processes."""
    ranks, rollouts = (read_number(environment, name) for name in _CPU_COUNTS)
    engines = tuple(Bundle("rollout") for _ in range(rollouts))
    return Placement((Bundle("learner", ranks=ranks),), engines)


@dataclass(frozen=True)
class Choice:
    """A placement with CUDA's names of the machine's GPUs and the reason of the choice."""

    placement: Placement
    visible: tuple[str, ...]
    how: str


def choose(environment: Mapping[str, str], device_files: Iterable[str]) -> Choice:
    """Return the placement of this machine, by the environment or by default.

    WEIR_GPUS and CUDA_VISIBLE_DEVICES set it; on CPUs WEIR_LEARNER_RANKS and WEIR_ROLLOUTS do.
    ``device_files`` are the names in ``/dev``.
    """
    visible = visible_gpus(environment, device_files)
    line = environment.get("WEIR_GPUS")
    if line:
        return Choice(parse(line, {THIS_MACHINE: len(visible)}), visible, "as WEIR_GPUS says")
    if not visible:
        return Choice(on_cpus(environment), (), "this machine shows no GPU")
    cpu_counts = [name for name in _CPU_COUNTS if environment.get(name)]
    if cpu_counts:
        raise PlacementError(
            f"{' and '.join(cpu_counts)} count processes on CPUs, but this machine shows "
            f"{len(visible)} GPUs: write WEIR_GPUS instead, for example "
            f"WEIR_GPUS='{divide(len(visible))}', or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    half = "its one GPU is shared" if len(visible) == 1 else "half of the GPUs learn"
    return Choice(divide(len(visible)), visible, f"{half}; WEIR_GPUS would say otherwise")


def choose_for_cluster(
    nodes: Sequence[Mapping[str, Any]], environment: Mapping[str, str]
) -> Placement:
    """Return the placement on a Ray cluster, by WEIR_GPUS or by default.

    ``nodes`` is the list of `ray.nodes`. A node's names are its address, and ``x`` for each
    resource ``node:x``.
    """
    gpu_counts: dict[str, int] = {}  # by one name per node
    counts_by_name: dict[str, int] = {}  # by all names
    for node in nodes:
        if not node["Alive"]:
            continue
        names = _node_names(node)
        number = int(node["Resources"].get("GPU", 0))
        gpu_counts[names[-1]] = number
        counts_by_name |= dict.fromkeys(names, number)
    line = environment.get("WEIR_GPUS", "")
    if line:
        placement = parse(line, counts_by_name if ":" in line else None)
    elif any(gpu_counts.values()):
        placement = divide(gpu_counts)
    else:
        return on_cpus(environment)
    if any(bundle.share is not None for bundle in placement.bundles):
        raise PlacementError(f"{placement}: on a cluster no GPU can be shared")
    return placement


def _node_names(node: Mapping[str, Any]) -> list[str]:
    """Return the address of a node, then its other names."""
    names = [name.removeprefix("node:") for name in node["Resources"] if name.startswith("node:")]
    names = [name for name in names if not name.startswith("__")]  # Ray adds such names
    return sorted(names, key=lambda name: name != node["NodeManagerAddress"])


def visible_gpus(environment: Mapping[str, str], device_files: Iterable[str]) -> tuple[str, ...]:
    """Return CUDA's names of the visible GPUs: CUDA_VISIBLE_DEVICES in order, or all GPUs."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        number = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in device_files)
        return tuple(map(str, range(number)))
    names: list[str] = []
    for name in map(str.strip, listed.split(",")):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name):
            break  # CUDA ignores all entries from the first invalid one on
        if name in names:
            raise PlacementError(f"CUDA_VISIBLE_DEVICES={listed!r} lists {name} twice")
        names.append(name)
    return tuple(names)


def read_number(
    environment: Mapping[str, str],
    name: str,
    default: int = 1,
    *,
    minimum: int = 1,
    maximum: int = 9999,
) -> int:
    """Return the number in a variable, or raise a PlacementError that names it."""
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not minimum <= int(text) <= maximum:
        raise PlacementError(f"{name}={text!r}: give a whole number from {minimum} to {maximum}")
    return int(text)


def gpu_variables(bundle: Bundle, visible: Sequence[str] | None = None) -> dict[str, str]:
    """Return the variables that bind the processes of a bundle to its GPUs.

    ``visible`` has CUDA's names of the node's GPUs in order; None sets no CUDA_VISIBLE_DEVICES.
    """
    if not bundle.gpus:
        return {}
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "WEIR_NUM_GPUS": str(len(bundle.gpus))}
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible[gpu.index] for gpu in bundle.gpus)
    if bundle.role == "rollout":
        variables["WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE"] = str(len(bundle.gpus))
        if bundle.share is not None:
            variables["WEIR_ROLLOUT_GPU_MEMORY"] = f"{bundle.share:g}"
    if bundle.turns:
        variables["WEIR_TURNS"] = ",".join(str(gpu.index) for gpu in bundle.turns)
    return variables


def split_problem(num_gpus: int, heads: int, key_value_heads: int) -> str | None:
    """Return why vLLM cannot split attention heads over an engine's GPUs, or None."""
    if heads % num_gpus:
        return f"its {heads} attention heads cannot be split evenly over {num_gpus} GPUs"
    if key_value_heads % num_gpus and num_gpus % key_value_heads:
        return (
            f"its {key_value_heads} key-value heads can neither be split evenly over {num_gpus} "
            "GPUs nor be copied evenly to them"
        )
    return None


def _parse_bundle(word: str) -> Bundle | None:
    """Parse ``rollout=a:0-2,b:1@0.4``, or return None; a node counts until the next one."""
    match = _BUNDLE.fullmatch(word)
    if match is None:
        return None
    gpus: list[Gpu] = []
    node = THIS_MACHINE
    for part in match["gpus"].split(","):
        gpu_range = _GPUS.fullmatch(part)
        if gpu_range is None:
            return None
        node = gpu_range["node"] or node
        first = int(gpu_range["first"])
        indices = range(first, int(gpu_range["last"] or first) + 1)
        if not indices:
            return None
        gpus += [Gpu(node, index) for index in indices]
    role = match["role"]
    share = float(match["share"]) if match["share"] else None
    if share is not None and (role not in ENGINES or not 0 < share <= MAX_GPU_SHARE):
        return None
    if match["turns"] and role != "rollout":
        return None
    turns = tuple(gpus) if match["turns"] else ()
    return Bundle(role, tuple(gpus), share, turns=turns)


def _learner_bundles(gpus: Iterable[Gpu], turns: Collection[Gpu]) -> Iterator[Bundle]:
    by_node: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    for node_gpus in by_node.values():
        node_turns = tuple(gpu for gpu in node_gpus if gpu in turns)
        yield Bundle("learner", tuple(node_gpus), ranks=len(node_gpus), turns=node_turns)


def _role_problems(bundles: Sequence[Bundle]) -> Iterator[str]:
    counts = Counter(bundle.role for bundle in bundles)
    for role in ("learner", "rollout"):
        if not counts[role]:
            yield f"no GPU for the {role}; write {role}="
    for role in ("learner", "judge"):
        if counts[role] > 1:
            yield f"{role}= is listed {counts[role]} times; name all its GPUs in one"


def _node_problems(bundles: Sequence[Bundle]) -> Iterator[str]:
    for bundle in bundles:
        if bundle.role in ENGINES and len({gpu.node for gpu in bundle.gpus}) > 1:
            yield f"{bundle}: an engine's GPUs must be on one node"
        for gpu, times in Counter(bundle.gpus).items():
            if times > 1:
                yield f"{bundle}: GPU {gpu} is named {times} times"
    nodes = {gpu.node for bundle in bundles for gpu in bundle.gpus}
    if THIS_MACHINE in nodes and len(nodes) > 1:
        yield "some GPUs have a node and others have none; name the node of each"


def _share_problems(bundles: Sequence[Bundle]) -> Iterator[str]:
    """Yield wrong sharing: each engine on a shared GPU needs a share."""
    for gpu in sorted({gpu for bundle in bundles for gpu in bundle.gpus}):
        sharers = [bundle for bundle in bundles if gpu in bundle.gpus]
        names = " and ".join(map(str, sharers))
        roles = {bundle.role for bundle in sharers}
        if "learner" not in roles and any(bundle.turns for bundle in sharers):
            yield f"GPU {gpu}: {names} takes turns with no learner; leave out :turns"
        if len(sharers) < 2:
            continue
        if "idle" in roles:
            yield f"GPU {gpu} is idle and has another role: {names}"
        elif any(bundle.role in ENGINES and bundle.share is None for bundle in sharers):
            yield f"GPU {gpu} is listed twice: {names}; to share it write rollout={gpu}@0.4"
        else:
            limit = MAX_GPU_SHARE
            if "learner" in roles:
                limit -= _MIN_LEARNER_SHARE
            if sum(bundle.share or 0.0 for bundle in sharers) > limit:
                yield f"GPU {gpu}: the shares of {names} exceed {limit:g} of it"


def _availability_problems(
    bundles: Sequence[Bundle], available: Mapping[str, int]
) -> Iterator[str]:
    """Yield missing nodes, missing GPUs, and GPUs without a role."""
    gpus = {gpu for bundle in bundles for gpu in bundle.gpus}
    for node in sorted({gpu.node for gpu in gpus} - set(available)):
        nodes = ", ".join(sorted(filter(None, available)))
        yield f"there is no node {node!r}, only {nodes or 'this machine (no cluster of Ray)'}"
    for node, number in sorted(available.items()):
        used = {gpu.index for gpu in gpus if gpu.node == node}
        machine = f"node {node}" if node else "this machine"
        visible = f"GPUs 0-{number - 1}" if number else "none"
        for index in sorted(used - set(range(number))):
            yield f"GPU {Gpu(node, index)} does not exist: {machine} shows {visible}"
        unused = _ranges(Gpu(node, index) for index in range(number) if index not in used)
        if unused and (used or not node):
            yield f"no service has GPU {unused}; give it to one, or write idle={unused}"


def _count_named_gpus(bundles: Sequence[Bundle]) -> dict[str, int]:
    """Return the smallest number of GPUs per node that has all GPUs of the line."""
    counts: dict[str, int] = {}
    for bundle in bundles:
        for gpu in bundle.gpus:
            counts[gpu.node] = max(counts.get(gpu.node, 0), gpu.index + 1)
    return counts


def _ranges(gpus: Iterable[Gpu]) -> str:
    """Return GPUs in the syntax of a line, with ranges of consecutive numbers."""
    ranges: list[tuple[Gpu, int]] = []  # the first GPU and the last index
    for gpu in gpus:
        if ranges and gpu == Gpu(ranges[-1][0].node, ranges[-1][1] + 1):
            ranges[-1] = (ranges[-1][0], gpu.index)
        else:
            ranges.append((gpu, gpu.index))
    return ",".join(
        str(first) if first.index == last else f"{first}-{last}" for first, last in ranges
    )
