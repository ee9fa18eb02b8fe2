"""The curriculum: the task of each request. Pure.

The task of a number depends on the recipe, its seed, and the pass rates of the groups that
completed training steps had inspected when the lookahead first admitted the number. It does not
depend on time, on the order in which groups arrive, or on how many rollouts and ranks there are:

1. `Curriculum.assign` gives numbers their tasks in the order of the numbers.
2. `Curriculum.note` enters a step's pass rates after the step. So within a step the state does not
   know its groups, however many of them have been inspected.
3. Every checkpoint holds the state. An attempt that makes a step again admits the same numbers,
   since `Selection` is pure, and assigns them the same tasks.

Groups are requested up to ``max_staleness`` steps ahead. So the choice of a step's tasks may lack
the pass rates of so many steps before it, whose groups were under way. With dynamic sampling a
step looks further if groups are too old for it, so there the versions that sampled them matter too.

The sources share every ``groups_per_step`` numbers by the largest-remainder method, and the next
ones carry the remainders, so each source has its exact share in the long run. Each source shuffles
its tasks again for every epoch. Without dynamic sampling such a block of numbers is a step.

With a curriculum, a task is of the kind that its latest pass rate says: the share of correct
responses among the graded ones of a group. It is easy at 1 and hard at 0, where a group gives no
signal. The pass rate counts whether the step used or dropped the group, and a group without graded
responses leaves the earlier one. A task without a pass rate is `NORMAL`.
Requests for easy and hard tasks draw one at random that is not under way; if there is none, they
are as those for normal tasks. Where a source has no normal task, it asks for any that has not
retired, or for all.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from statistics import fmean

from protocol.messages import GradedGroup, Task
from protocol.recipe import Recipe
from protocol.recipe_tasks import Source
from pydantic import BaseModel, ConfigDict

from services.learner.attempt import JobFault
from services.learner.training.scoring import ScoredGroup

PASS_RATE = "pass_rate"  # in a task's metadata: the one before the first step


class Kind(StrEnum):
    NORMAL = "normal"
    EASY = "easy"
    HARD = "hard"
    RETIRED = "retired"


class SourceState(BaseModel):
    requests: int = 0
    place: int = 0  # in the source's epochs, one after the other


class CurriculumState(BaseModel):
    """What later assignments depend on. Tasks are numbered through all sources."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0  # completed training steps
    first: int = 0  # every number below has been inspected
    tasks: list[int] = []  # of the numbers from ``first`` on
    plan: list[int] = []  # the sources of the next numbers
    sources: list[SourceState] = []
    pass_rates: dict[int, tuple[float, int]] = {}  # the latest of a task, and when


def order_of_epoch(num_tasks: int, seed: str, epoch: int) -> Sequence[int]:
    order = list(range(num_tasks))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


@dataclass
class _Pool:
    """The tasks of one source, by their numbers, and the kinds of those that are not normal."""

    tasks: range
    source: Source
    seed: str
    epoch: int = -1  # whose order it has
    order: Sequence[int] = ()
    sizes: Counter[Kind] = field(default_factory=Counter[Kind])
    members: dict[Kind, list[int]] = field(default_factory=dict[Kind, list[int]])  # not under way

    @property
    def weight(self) -> Fraction:
        return Fraction(str(self.source.weight))

    @property
    def asked_kinds(self) -> Collection[Kind]:
        """The kinds that a request may ask for if it does not ask for easy or hard tasks."""
        if self.sizes[Kind.NORMAL]:
            return {Kind.NORMAL}
        is_retired = self.sizes[Kind.RETIRED] == len(self.tasks)
        return set(Kind) if is_retired else set(Kind) - {Kind.RETIRED}

    def has_place(self, place: int) -> bool:
        return self.source.when_exhausted == "repeat" or place < len(self.tasks)

    def find_task(self, place: int) -> int:
        """Return the task at a place: each task once an epoch, in a new order."""
        epoch, place = divmod(place, len(self.tasks))
        if epoch != self.epoch:
            self.order = order_of_epoch(len(self.tasks), self.seed, epoch)
            self.epoch = epoch
        return self.tasks[self.order[place]]

    def sort(self, kinds: Mapping[int, Kind], under_way: Collection[int]) -> None:
        self.sizes = Counter(kinds.values())
        self.sizes[Kind.NORMAL] = len(self.tasks) - len(kinds)
        self.members = {kind: [] for kind in Kind}
        for task in sorted(kinds.keys() - under_way):
            self.members[kinds[task]].append(task)

    def hide(self, task: int) -> None:
        """Note that a task is under way."""
        for members in self.members.values():
            if task in members:
                members.remove(task)


class Curriculum:
    """Assigns tasks to the numbers of one purpose.

    Args:
        recipe: its seed, sources and curriculum.
        tasks: by the name of their source, the same in every attempt.
        state: of the last checkpoint; it is changed. By default it begins at number 0, with the
            pass rates in the tasks' metadata.
        adapts: whether pass rates matter, as far as the recipe has a curriculum.

    Raises:
        JobFault: if a task's pass rate is not a number from 0 to 1.
    """

    def __init__(
        self,
        recipe: Recipe,
        tasks: Mapping[str, Sequence[Task]],
        state: CurriculumState | None = None,
        *,
        adapts: bool = True,
    ) -> None:
        self.state = CurriculumState() if state is None else state
        self._settings = recipe.tasks.curriculum if adapts else None
        self._block = recipe.training.groups_per_step
        self._seed = recipe.training.seed
        self._tasks = list(chain(*tasks.values()))
        self._pools = list(_make_pools(recipe, tasks))
        self._starts = [pool.tasks.start for pool in self._pools]
        self._kinds: dict[int, Kind] = {}  # of the tasks that are not normal
        if not self.state.sources:
            self.state.sources = [SourceState() for _ in self._pools]
            if self._settings is not None:
                self.state.pass_rates = dict(_first_pass_rates(self._tasks))
        self._sort()

    def task(self, number: int) -> Task:
        """Return the task of a number that is assigned, and open in the last completed step."""
        return self._tasks[self.state.tasks[number - self.state.first]]

    def assign(self, end: int) -> None:
        """Assign tasks to the numbers below ``end`` that have none."""
        state = self.state
        while (number := state.first + len(state.tasks)) < end:
            state.tasks.append(self._draw(number))

    def note(self, groups: Sequence[GradedGroup], step: int) -> None:
        """Enter the pass rates of the groups that a step has inspected, in their order.

        Args:
            step: the number of completed steps.
        """
        state = self.state
        for group in groups if self._settings is not None else ():
            task = self._find(group)
            graded = [grade.is_right for grade in group.grades if grade.accuracy is not None]
            if task is not None and graded:
                state.pass_rates[task] = fmean(graded), step
        if groups:
            end = groups[-1].number + 1
            del state.tasks[: end - state.first]
            state.first = end
        state.step = step
        self._sort()

    def measure(self, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Return metrics of a step's groups by source, and how many tasks are of each kind.

        `note` comes later. There is no mean of nothing.
        """
        metrics: dict[str, float] = {}
        parts: dict[str, list[ScoredGroup]] = {pool.source.name: [] for pool in self._pools}
        for group in groups:
            task = self._find(group.graded)
            if task is not None:
                parts[self._find_pool(task).source.name].append(group)
        for name, part in parts.items() if all(parts) else ():
            rewards = [reward for group in part for reward in group.rewards.tolist()]
            correct = [right for group in part for right in group.scores.correct.tolist()]
            means = {"reward": [r for r in rewards if not math.isnan(r)], "accuracy": correct}
            metrics |= {f"source/{name}/{key}": fmean(of) for key, of in means.items() if of}
            metrics[f"source/{name}/groups"] = len(part)
            metrics[f"source/{name}/samples"] = len(correct)
        if self._settings is not None:
            sizes = sum((pool.sizes for pool in self._pools), Counter[Kind]())
            metrics |= {f"tasks/{kind}": sizes[kind] for kind in Kind}
        return metrics

    def _find(self, group: GradedGroup) -> int | None:
        """Return the task of a group; None if it failed, or has another task.

        A group that was requested before the log was lost may have another task.
        """
        task = self.state.tasks[group.number - self.state.first]
        rollout = group.group
        has_task = rollout is not None and rollout.request.task.id == self._tasks[task].id
        return task if has_task else None

    def _find_pool(self, task: int) -> _Pool:
        return self._pools[bisect_right(self._starts, task) - 1]

    def _draw(self, number: int) -> int:
        """Return the task of the next number."""
        plan = self.state.plan
        while True:
            if not plan:
                plan += self._plan(self._block - number % self._block)
            task = self._ask(plan[0], number)
            if task is not None:
                self.state.sources[plan.pop(0)].requests += 1
                return task
            plan.clear()  # the source has ended

    def _plan(self, count: int) -> list[int]:
        """Return the sources of the next numbers: largest remainders, and evenly spread."""
        pools = {
            index: pool
            for index, pool in enumerate(self._pools)
            if pool.has_place(self.state.sources[index].place)
        }
        requests = {index: self.state.sources[index].requests for index in pools}
        total = sum(requests.values()) + count
        whole = sum(pool.weight for pool in pools.values())
        due = {
            index: total * pool.weight / whole - requests[index] for index, pool in pools.items()
        }
        counts = dict.fromkeys(pools, 0)
        for _ in range(count):
            index = max(due, key=lambda index: due[index] - counts[index])
            counts[index] += 1
        places = [(Fraction(2 * k + 1, n), index) for index, n in counts.items() for k in range(n)]
        return [index for _, index in sorted(places)]

    def _ask(self, index: int, number: int) -> int | None:
        """Return a task of a source, None if the source has ended."""
        pool = self._pools[index]
        state = self.state.sources[index]
        members = pool.members[self._wanted_kind(state.requests)]
        if members:
            task = random.Random(f"{self._seed}:task:{number}").choice(members)
            pool.hide(task)
            return task
        kinds = pool.asked_kinds
        while pool.has_place(state.place):
            task = pool.find_task(state.place)
            state.place += 1
            if self._kinds.get(task, Kind.NORMAL) in kinds:
                pool.hide(task)
                return task
        return None

    def _wanted_kind(self, count: int) -> Kind:
        """Return the kind of a source's next request, after ``count`` others."""
        if self._settings is None:
            return Kind.NORMAL
        easy = Fraction(str(self._settings.easy or 0))
        if _is_due(count, easy):
            return Kind.EASY
        hard = Fraction(str(self._settings.hard or 0)) / (1 - easy)
        return Kind.HARD if _is_due(count - math.floor(count * easy), hard) else Kind.NORMAL

    def _sort(self) -> None:
        """Sort the tasks into kinds, by the pass rates of completed steps."""
        kinds = {task: self._kind(*latest) for task, latest in self.state.pass_rates.items()}
        self._kinds = {task: kind for task, kind in kinds.items() if kind is not Kind.NORMAL}
        parts: dict[int, dict[int, Kind]] = {start: {} for start in self._starts}
        for task, kind in self._kinds.items():
            parts[self._find_pool(task).tasks.start][task] = kind
        for pool in self._pools:
            pool.sort(parts[pool.tasks.start], set(self.state.tasks))

    def _kind(self, rate: float, step: int) -> Kind:
        settings = self._settings
        if settings is None:
            return Kind.NORMAL
        if settings.retire_above is not None and rate >= settings.retire_above:
            age = self.state.step - step
            if settings.return_after is None or age < settings.return_after:
                return Kind.RETIRED
        if settings.easy is not None and rate == 1:
            return Kind.EASY
        return Kind.HARD if settings.hard is not None and rate == 0 else Kind.NORMAL


def _make_pools(recipe: Recipe, tasks: Mapping[str, Sequence[Task]]) -> Iterator[_Pool]:
    sources = {source.name: source for source in recipe.tasks.sources}
    end = 0
    for index, (name, part) in enumerate(tasks.items()):
        source = sources.get(name) or Source.model_construct(name=name, train=recipe.tasks.train)
        seed = str(recipe.training.seed) + f".{index}" * bool(index)
        yield _Pool(range(end, end + len(part)), source, seed)
        end += len(part)


def _first_pass_rates(tasks: Sequence[Task]) -> Iterator[tuple[int, tuple[float, int]]]:
    for index, task in enumerate(tasks):
        rate = task.metadata.get(PASS_RATE)
        if rate is None:
            continue
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise JobFault(
                f"task {task.id!r}: metadata.{PASS_RATE} must be a number from 0 to 1; correct it, "
                "or remove it"
            )
        yield index, (float(rate), 0)


def _is_due(count: int, share: Fraction) -> bool:
    """Whether the next of the numbers belongs to an exact share of them, spread evenly."""
    return math.floor((count + 1) * share) > math.floor(count * share)
