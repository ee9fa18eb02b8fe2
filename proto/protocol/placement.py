"""Who has which GPU: one line, WEIR_GPUS, read alike for processes, compose and Ray. Pure.

::

    learner=0-3 rollout=4,5 rollout=6,7        two engines, each split over two GPUs
    learner=0 rollout=1 judge=2 idle=3         a judge of the stack's own
    learner=0 rollout=0@0.4                    shared: the engine takes 40 % of GPU 0
    learner=0 rollout=0@0.5:turns              in turns: it sleeps while the learner computes
    learner=a:0-7,b:0-7 rollout=c:0-3 idle=c:4-7      on the nodes a, b and c of a Ray cluster

The learner has one rank per GPU. Each ``rollout=`` is one engine, and its GPUs are its tensor
parallelism. GPUs are counted from 0 among those that the machine shows (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ENGINES = ("rollout", "judge")
_ITEM = re.compile(
    r"(?P<role>learner|rollout|judge|idle)=(?P<gpus>[^@]+)"
    r"(?:@(?P<share>0?\.\d+)(?P<turns>:turns)?)?"
)
_GPUS = re.compile(r"(?:(?P<node>[\w.-]+):)?(?P<first>\d{1,4})(?:-(?P<last>\d{1,4}))?")
_EXAMPLE = "WEIR_GPUS='learner=0-3 rollout=4,5 rollout=6,7'"
_SHARED_WITH_A_JUDGE = (0.5, 0.4)  # of a GPU that engine and judge share
_SHARED_BY_ALL = (0.3, 0.3)  # of a single GPU; the learner has the rest
_SHARED_ENGINE = 0.5  # of a single GPU, in the absence of a line, while it is awake
_CPU_COUNTS = ("WEIR_LEARNER_RANKS", "WEIR_ROLLOUTS")
ASLEEP = 0.03  # of a GPU, by an engine that sleeps: its CUDA context and graphs, an assumption
MOST_OF_A_GPU = 0.9  # what the processes of a GPU may take together; the rest is CUDA's own
_LEAST_OF_A_LEARNER = 0.1
THIS_MACHINE = ""


class PlacementError(ValueError):
    """A placement that cannot be; the text names every problem and what to write instead."""


@dataclass(frozen=True, order=True)
class Gpu:
    """One GPU of a node; the only node of a line without nodes is ``""``, this machine."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}" if self.node else str(self.index)


@dataclass(frozen=True)
class Bundle:
    """Where the processes of one launch run: a learner's ranks on one node, or one engine."""

    role: str
    gpus: tuple[Gpu, ...] = ()  # none: it computes on the CPU
    share: float | None = None  # of each GPU's memory that an engine may take; None: most of it
    ranks: int = 1  # processes; of an engine always 1
    turns: tuple[Gpu, ...] = ()  # that learner and engine have by turns

    @property
    def node(self) -> str:
        return self.gpus[0].node if self.gpus else THIS_MACHINE

    def __str__(self) -> str:
        share = "" if self.share is None else f"@{self.share:g}{':turns' * bool(self.turns)}"
        return f"{self.role}={_ranges(self.gpus)}{share}"


@dataclass(frozen=True)
class Placement:
    """What runs where: the learner's bundles, one per node; sampling engines; a judge."""

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
        """The part of a GPU that its engines leave to the learner, in its turns or between them."""
        return MOST_OF_A_GPU - sum(
            ASLEEP if bundle.turns and not at_rest else bundle.share or 0.0
            for bundle in self.bundles
            if bundle.role in ENGINES and gpu in bundle.gpus
        )

    def __str__(self) -> str:
        """The line that describes it."""
        learner = f"learner={_ranges(gpu for bundle in self.learner for gpu in bundle.gpus)}"
        engines = [str(bundle) for bundle in self.bundles if bundle.role in ENGINES]
        return " ".join([learner, *engines, *([f"idle={_ranges(self.idle)}"] if self.idle else [])])


def parse(line: str, available: Mapping[str, int] | None = None) -> Placement:
    """Read a line; a PlacementError names every problem of it.

    ``available`` is the number of GPUs of each node, ``{"": 8}`` for this machine; None if the box
    is not known, and taken to be as large as the line says.
    """
    items = [_item(word) for word in line.split()]
    bundles = [bundle for bundle in items if bundle is not None]
    turns = {gpu for bundle in bundles for gpu in bundle.turns}
    problems = [
        f"{word!r} is not ROLE=GPUS: roles are learner, rollout, judge and idle, GPUs 0 or 0,2 or "
        "0-3, on a node a:0-3; a rollout or judge may add @SHARE, above 0 and at most "
        f"{MOST_OF_A_GPU}, and a rollout on the learner's GPU @SHARE:turns"
        for word, bundle in zip(line.split(), items, strict=True)
        if bundle is None
    ]
    learner = [gpu for bundle in bundles if bundle.role == "learner" for gpu in bundle.gpus]
    placement = Placement(
        learner=tuple(_learner_bundles(learner, turns)),
        rollouts=tuple(bundle for bundle in bundles if bundle.role == "rollout"),
        judge=next((bundle for bundle in bundles if bundle.role == "judge"), None),
        idle=tuple(gpu for bundle in bundles if bundle.role == "idle" for gpu in bundle.gpus),
    )
    if not problems:  # what could not be read would be missed again
        problems += _missing(bundles)
        problems += _misplaced(bundles)
        problems += _shared_wrongly(bundles)
        problems += _beyond(bundles, _box_of(bundles) if available is None else available)
    if problems:
        raise PlacementError(f"WEIR_GPUS={line!r}: {'; '.join(problems)}. Example: {_EXAMPLE}")
    return placement


def divide(available: int | Mapping[str, int], *, judge: bool = False) -> Placement:
    """A sensible placement of this machine's GPUs, or of those of each node of a cluster.

    Half of them learn, each other one samples. A single GPU is shared. None at all is `on_cpus`.
    A judge has the last GPU; of two it shares one with the engine, a single one with all.
    """
    nodes = {THIS_MACHINE: available} if isinstance(available, int) else available
    gpus = [Gpu(node, index) for node, number in nodes.items() for index in range(number)]
    half = len(gpus) // 2
    share, turns = (None, ()) if half else (_SHARED_ENGINE, tuple(gpus))
    engines = [Bundle("rollout", (gpu,), share, turns=turns) for gpu in gpus[half:]]
    learner = tuple(_learner_bundles(gpus[: max(1, half)], turns))
    if not judge:
        return Placement(learner, tuple(engines))
    if len(engines) > 1:
        return Placement(learner, tuple(engines[:-1]), replace(engines[-1], role="judge"))
    of_engine, of_judge = _SHARED_WITH_A_JUDGE if half else _SHARED_BY_ALL
    engine = replace(engines[-1], share=of_engine)
    return Placement(learner, (engine,), Bundle("judge", engine.gpus, of_judge))


def on_cpus(environment: Mapping[str, str]) -> Placement:
    """A placement without GPUs, of as many processes as an environment says."""
    ranks, rollouts = (number_of(environment, name) for name in _CPU_COUNTS)
    engines = tuple(Bundle("rollout") for _ in range(rollouts))
    return Placement((Bundle("learner", ranks=ranks),), engines)


@dataclass(frozen=True)
class Choice:
    """The placement of a machine, how CUDA names its GPUs in order, and how that was decided."""

    placement: Placement
    visible: tuple[str, ...]
    how: str


def choose(environment: Mapping[str, str], device_files: Iterable[str]) -> Choice:
    """The placement of this machine that an environment asks for, else a sensible one.

    It is asked for by WEIR_GPUS and CUDA_VISIBLE_DEVICES, or WEIR_LEARNER_RANKS and WEIR_ROLLOUTS
    where there is no GPU. ``device_files`` are the names in ``/dev``.
    """
    visible = visible_gpus(environment, device_files)
    if line := environment.get("WEIR_GPUS"):
        return Choice(parse(line, {THIS_MACHINE: len(visible)}), visible, "as WEIR_GPUS says")
    if not visible:
        return Choice(on_cpus(environment), (), "this machine shows no GPU")
    if wrong := [name for name in _CPU_COUNTS if environment.get(name)]:
        raise PlacementError(
            f"{' and '.join(wrong)} count processes on CPUs, but this machine shows "
            f"{len(visible)} GPUs: write WEIR_GPUS instead, for example "
            f"WEIR_GPUS='{divide(len(visible))}', or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    half = "its one GPU is shared" if len(visible) == 1 else "half of the GPUs learn"
    return Choice(divide(len(visible)), visible, f"{half}; WEIR_GPUS would say otherwise")


def choose_on(nodes: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> Placement:
    """The placement that WEIR_GPUS asks for on the nodes of a Ray cluster, else a sensible one.

    ``nodes`` are as `ray.nodes` lists them. A node's names are its address, and ``x`` if it was
    started with the resource ``node:x``.
    """
    gpus: dict[str, int] = {}  # by the name of the node that was given last, else its address
    by_any_name: dict[str, int] = {}
    for node in (node for node in nodes if node["Alive"]):
        names = _names_of(node)
        number = int(node["Resources"].get("GPU", 0))
        gpus[names[-1]] = number
        by_any_name |= dict.fromkeys(names, number)
    if line := environment.get("WEIR_GPUS", ""):
        placement = parse(line, by_any_name if ":" in line else None)
    elif any(gpus.values()):
        placement = divide(gpus)
    else:
        return on_cpus(environment)
    if any(bundle.share is not None for bundle in placement.bundles):
        raise PlacementError(f"{placement}: on a cluster no GPU can be shared")
    return placement


def _names_of(node: Mapping[str, Any]) -> list[str]:
    """The address of a node, then the names it was given."""
    named = [name.removeprefix("node:") for name in node["Resources"] if name.startswith("node:")]
    given = [name for name in named if not name.startswith("__")]  # Ray's own
    return sorted(given, key=lambda name: name != node["NodeManagerAddress"])


def visible_gpus(environment: Mapping[str, str], device_files: Iterable[str]) -> tuple[str, ...]:
    """How CUDA names the GPUs that it shows: those of CUDA_VISIBLE_DEVICES in order, else all."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        number = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in device_files)
        return tuple(str(index) for index in range(number))
    names: list[str] = []
    for name in map(str.strip, listed.split(",")):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name):
            break  # as CUDA does: it shows nothing from a name on that is none
        if name in names:
            raise PlacementError(f"CUDA_VISIBLE_DEVICES={listed!r} lists {name} twice")
        names.append(name)
    return tuple(names)


def number_of(
    environment: Mapping[str, str], name: str, default: int = 1, *, least: int = 1, most: int = 9999
) -> int:
    """The number of a variable, within bounds; a PlacementError names what has none."""
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise PlacementError(f"{name}={text!r}: give a whole number from {least} to {most}")
    return int(text)


def environment_of(bundle: Bundle, visible: Sequence[str] | None = None) -> dict[str, str]:
    """The variables that bind the processes of a bundle to its GPUs.

    ``visible`` is how CUDA names the GPUs of the node, in order; None leaves them to others.
    """
    if not bundle.gpus:
        return {}
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
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
    """Why vLLM cannot split a model with so many attention heads over an engine's GPUs, if so."""
    if heads % num_gpus:
        return f"its {heads} attention heads cannot be split evenly over {num_gpus} GPUs"
    if key_value_heads % num_gpus and num_gpus % key_value_heads:
        return (
            f"its {key_value_heads} key-value heads can neither be split evenly over {num_gpus} "
            "GPUs nor be copied evenly to them"
        )
    return None


def _item(word: str) -> Bundle | None:
    """``rollout=a:0-2,b:1@0.4``; a node counts until another is named. None if not written so."""
    match = _ITEM.fullmatch(word)
    if match is None:
        return None
    gpus: list[Gpu] = []
    node = THIS_MACHINE
    for part in match["gpus"].split(","):
        named = _GPUS.fullmatch(part)
        if named is None:
            return None
        node = named["node"] or node
        first = int(named["first"])
        several = range(first, int(named["last"] or first) + 1)
        if not several:
            return None
        gpus += [Gpu(node, index) for index in several]
    share = float(match["share"]) if match["share"] else None
    if share is not None and not (match["role"] in ENGINES and 0 < share <= MOST_OF_A_GPU):
        return None
    if match["turns"] and match["role"] != "rollout":
        return None
    return Bundle(match["role"], tuple(gpus), share, turns=tuple(gpus) if match["turns"] else ())


def _learner_bundles(gpus: Iterable[Gpu], turns: Collection[Gpu]) -> Iterator[Bundle]:
    by_node: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    for on_node in by_node.values():
        own = tuple(gpu for gpu in on_node if gpu in turns)
        yield Bundle("learner", tuple(on_node), ranks=len(on_node), turns=own)


def _missing(bundles: Sequence[Bundle]) -> Iterator[str]:
    counts = Counter(bundle.role for bundle in bundles)
    for role in ("learner", "rollout"):
        if not counts[role]:
            yield f"no GPU for the {role}; write {role}="
    for role in ("learner", "judge"):
        if counts[role] > 1:
            yield f"{role}= is there {counts[role]} times; name all its GPUs in one"


def _misplaced(bundles: Sequence[Bundle]) -> Iterator[str]:
    for bundle in bundles:
        if bundle.role in ENGINES and len({gpu.node for gpu in bundle.gpus}) > 1:
            yield f"{bundle}: an engine's GPUs must be of one node"
        for gpu, times in Counter(bundle.gpus).items():
            if times > 1:
                yield f"{bundle}: GPU {gpu} is named {times} times"
    if len({bool(gpu.node) for bundle in bundles for gpu in bundle.gpus}) > 1:
        yield "either every GPU is of a named node, or none is"


def _shared_wrongly(bundles: Sequence[Bundle]) -> Iterator[str]:
    """Two processes may share a GPU only where each engine on it says what it takes."""
    for gpu in sorted({gpu for bundle in bundles for gpu in bundle.gpus}):
        there = [bundle for bundle in bundles if gpu in bundle.gpus]
        names = " and ".join(str(bundle) for bundle in there)
        has_learner = any(bundle.role == "learner" for bundle in there)
        if not has_learner and any(bundle.turns for bundle in there):
            yield f"GPU {gpu}: {names} has nobody to take turns with; leave out :turns"
        if len(there) < 2:
            continue
        if any(bundle.role == "idle" for bundle in there):
            yield f"GPU {gpu} is idle and given away: {names}"
        elif any(bundle.role in ENGINES and bundle.share is None for bundle in there):
            yield f"GPU {gpu} is given twice: {names}; to share it write rollout={gpu}@0.4"
        else:
            most = MOST_OF_A_GPU
            if has_learner:
                most -= _LEAST_OF_A_LEARNER
            if sum(bundle.share or 0.0 for bundle in there) > most:
                yield f"GPU {gpu}: the shares of {names} exceed {most:g} of it"


def _beyond(bundles: Sequence[Bundle], available: Mapping[str, int]) -> Iterator[str]:
    """GPUs that are not there, and GPUs that nobody has."""
    named = {gpu for bundle in bundles for gpu in bundle.gpus}
    for node in sorted({gpu.node for gpu in named} - set(available)):
        known = ", ".join(sorted(filter(None, available)))
        yield f"there is no node {node!r}, only {known or 'this machine (no cluster of Ray)'}"
    for node, number in sorted(available.items()):
        of_node = {gpu.index for gpu in named if gpu.node == node}
        where = f"node {node}" if node else "this machine"
        for index in sorted(index for index in of_node if index >= number):
            shown = f"shows GPUs 0-{number - 1}" if number else "shows none"
            yield f"GPU {Gpu(node, index)} is not there: {where} {shown}"
        unused = [Gpu(node, index) for index in range(number) if index not in of_node]
        if unused and (of_node or not node):
            yield f"nobody has {_ranges(unused)}; give it a role, or write idle={_ranges(unused)}"


def _box_of(bundles: Sequence[Bundle]) -> dict[str, int]:
    box: dict[str, int] = {}
    for gpu in (gpu for bundle in bundles for gpu in bundle.gpus):
        box[gpu.node] = max(box.get(gpu.node, 0), gpu.index + 1)
    return box


def _ranges(gpus: Iterable[Gpu]) -> str:
    """GPUs as a line writes them, runs of numbers as ranges."""
    runs: list[list[Gpu]] = []
    for gpu in gpus:
        if runs and gpu == Gpu(runs[-1][-1].node, runs[-1][-1].index + 1):
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1].index}" for run in runs)
