"""Which task a number gets: shares of sources, epochs, kinds of tasks, and nothing but outcomes."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.messages import GradedGroup, Task
from protocol.recipe import Recipe

from services.learner.attempt import JobFault
from services.learner.supply.curriculum import Curriculum, CurriculumState
from services.learner.supply.selection import Selection
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import a_failed_group, a_recipe, a_task
from tests.unit.learner.groups import graded

Files = Mapping[str, Sequence[Task]]


def mixed(
    *weights: float,
    stop: str = "",
    curriculum: Mapping[str, Any] | None = None,
    **training: Any,
) -> Recipe:
    """A recipe with a source per weight: a, b, c…; one of them may stop."""
    sources = [
        {
            "name": name,
            "train": name,
            "weight": weight,
            "when_exhausted": "stop" if name == stop else "repeat",
        }
        for name, weight in zip("abcdefgh", weights, strict=False)
    ]
    tasks = {"train": "", "sources": sources, "curriculum": curriculum}
    return a_recipe(tasks=tasks, training={"steps": 50, "groups_per_step": 8} | training)


def files(**sizes: int) -> Files:
    return {n: [a_task(id=f"{n}{i}") for i in range(size)] for n, size in sizes.items()}


def ids(curriculum: Curriculum, end: int) -> list[str]:
    """The tasks of all numbers below the end, none of which has been inspected."""
    curriculum.assign(end)
    return [curriculum.task(number).id for number in range(end)]


def shares(tasks: Sequence[str], size: int) -> list[str]:
    """How many tasks of each source are in each block of so many."""
    blocks = [Counter(task[0] for task in tasks[n : n + size]) for n in range(0, len(tasks), size)]
    return [" ".join(f"{n}{count}" for n, count in sorted(block.items())) for block in blocks]


def test_each_step_has_the_largest_remainders_and_passes_them_on() -> None:
    tasks = files(a=50, b=50, c=50)
    assert set(shares(ids(Curriculum(mixed(1, 2, 5), tasks), 80), 8)) == {"a1 b2 c5"}
    thirds = mixed(1, 1, 1, groups_per_step=4)
    assert shares(ids(Curriculum(thirds, tasks), 12), 4) == ["a2 b1 c1", "a1 b2 c1", "a1 b1 c2"]
    tenths = ids(Curriculum(mixed(0.1, 0.7, 0.2), tasks), 80)
    assert shares(tenths, 8)[:3] == ["a1 b6 c1", "a1 b5 c2", "b6 c2"]
    assert shares(tenths, 80) == ["a8 b56 c16"]


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    per_step=st.integers(1, 12),
    steps=st.integers(1, 30),
)
def test_shares_are_exact_in_the_long_run(weights: list[float], per_step: int, steps: int) -> None:
    sizes = dict.fromkeys("abcde"[: len(weights)], 7)
    recipe = mixed(*weights, groups_per_step=per_step)
    counts = Counter(task[0] for task in ids(Curriculum(recipe, files(**sizes)), per_step * steps))
    for name, weight in zip(sizes, weights, strict=True):
        share = per_step * steps * weight / sum(weights)
        assert abs(counts[name] - share) < len(weights)


def test_one_file_keeps_its_order_and_further_ones_have_their_own_epochs() -> None:
    expected: list[str] = []
    for epoch in range(3):
        order = [f"{n}" for n in range(10)]
        random.Random(f"7:{epoch}").shuffle(order)
        expected += order
    for recipe, name in (
        (a_recipe(training={"seed": 7}), ""),
        (mixed(3.0, seed=7), "a"),
    ):
        tasks = {name: [a_task(id=f"{n}") for n in range(10)]}
        assert ids(Curriculum(recipe, tasks), 30) == expected
    both = ids(Curriculum(mixed(1, 1, seed=7), files(a=10, b=10)), 40)
    parts = {name: [task[1:] for task in both if task[0] == name] for name in "ab"}
    assert parts["a"] == expected[:20] != parts["b"]
    assert sorted(parts["b"][:10]) == sorted(parts["b"][10:]) == sorted(expected[:10])


def test_a_source_that_ends_leaves_its_share_to_the_others() -> None:
    tasks = ids(Curriculum(mixed(1, 1, 2, stop="c"), files(a=3, b=3, c=10)), 40)
    assert shares(tasks, 8) == ["a2 b2 c4", "a2 b2 c4", "a3 b3 c2", "a4 b4", "a4 b4"]
    assert len({task for task in tasks if task[0] == "c"}) == 10


def note(curriculum: Curriculum, step: int, rates: Mapping[str, Sequence[float | None]]) -> None:
    """Enter what the next numbers, eight of them, came to: nothing, for tasks without outcomes."""
    asked_next(curriculum)
    groups: list[GradedGroup] = []
    for number in range(curriculum.state.first, curriculum.state.first + 8):
        task = curriculum.task(number)
        groups.append(graded(*rates.get(task.id, (None,)), number=number, task=task))
    curriculum.note(groups, step)


def asked_next(curriculum: Curriculum) -> list[str]:
    first = curriculum.state.first
    curriculum.assign(first + 8)
    return [curriculum.task(number).id for number in range(first, first + 8)]


def kinds(curriculum: Curriculum) -> dict[str, int]:
    return {str(k).removeprefix("tasks/"): int(n) for k, n in curriculum.measure([]).items() if n}


def test_a_task_retires_by_its_latest_outcome_and_returns_after_some_steps() -> None:
    recipe = mixed(1, curriculum={"retire_above": 0.75, "return_after": 2})
    curriculum = Curriculum(recipe, files(a=8))
    note(curriculum, 1, {"a0": [1, 1, 1, 0], "a1": [1, 0], "a2": [1, None, None, 1]})
    assert kinds(curriculum) == {"normal": 6, "retired": 2}
    note(curriculum, 2, {"a1": [1, 1]})
    assert kinds(curriculum) == {"normal": 5, "retired": 3}
    assert not {"a0", "a1", "a2"} & {*asked_next(curriculum)}
    note(curriculum, 3, {})  # groups that are not graded leave outcomes as they are
    assert kinds(curriculum) == {"normal": 7, "retired": 1}


def test_tasks_that_never_return_are_asked_again_only_if_all_have_retired() -> None:
    curriculum = Curriculum(mixed(1, curriculum={"retire_above": 0.75}), files(a=4))
    note(curriculum, 1, {f"a{n}": [1.0] for n in range(3)})
    assert {*asked_next(curriculum)} == {"a3"}
    note(curriculum, 9, {"a3": [1.0]})
    assert kinds(curriculum) == {"retired": 4}
    assert {*asked_next(curriculum)} == {"a0", "a1", "a2", "a3"}


def test_easy_and_hard_tasks_have_their_shares_and_none_is_asked_twice_at_a_time() -> None:
    recipe = mixed(1, curriculum={"easy": 0.25, "hard": 0.5})
    easy = {f"a{n}": [1.0] for n in range(10)}
    hard = {f"a{n}": [0.0] for n in range(10, 30)}
    tasks = {
        "a": [
            a_task(id=name, metadata={"pass_rate": rate}) for name, (rate,) in (easy | hard).items()
        ]
        + [a_task(id=f"a{n}", metadata={"pass_rate": (n - 29) / 31}) for n in range(30, 60)]
    }
    curriculum = Curriculum(recipe, tasks)
    assert kinds(curriculum) == {"normal": 30, "easy": 10, "hard": 20}
    asked = ids(curriculum, 40)
    assert sum(task in easy for task in asked) == len({*asked} & {*easy}) == 10
    assert sum(task in hard for task in asked) == len({*asked} & {*hard}) == 20
    # Under way are all easy and hard tasks.
    assert not {*ids(curriculum, 48)[40:]} & {*easy, *hard}
    curriculum.note([a_failed_group(number) for number in range(40)], 1)
    curriculum.assign(56)
    later = [curriculum.task(number).id for number in range(48, 56)]
    assert (sum(task in easy for task in later), sum(task in hard for task in later)) == (2, 4)
    assert not kinds(Curriculum(recipe, tasks, adapts=False))


@pytest.mark.parametrize("rate", ["0.5", 1.01, -1, True])
def test_a_pass_rate_that_is_none_is_refused(rate: Any) -> None:
    tasks = {"a": [a_task(id="odd", metadata={"pass_rate": rate})]}
    with pytest.raises(JobFault, match=r"^task 'odd': metadata.pass_rate must be a number from 0"):
        Curriculum(mixed(1, curriculum={"hard": 0.1}), tasks)
    assert ids(Curriculum(mixed(1), tasks), 1) == ["odd"]


def test_metrics_of_a_step_are_by_source() -> None:
    recipe = mixed(1, 1, 2)
    curriculum = Curriculum(recipe, files(a=3, b=3, c=3))
    curriculum.assign(8)
    groups: list[ScoredGroup] = []
    for number in range(8):
        task = curriculum.task(number)
        outcomes = {"a": [1.0, 0.0], "b": [1.0, None], "c": [None, None]}[task.id[0]]
        group = graded(*outcomes, process=[0.5], number=number, task=task)
        groups.append(ScoredGroup(group, Scoring.of(recipe)))
    assert curriculum.measure(groups) == {
        "source/a/reward": 0.5,
        "source/a/accuracy": 0.5,
        "source/a/groups": 2,
        "source/a/samples": 4,
        "source/b/reward": 1,
        "source/b/accuracy": 1,
        "source/b/groups": 2,
        "source/b/samples": 2,
        "source/c/groups": 4,
        "source/c/samples": 0,
    }


def an_answer(number: int, task: Task) -> GradedGroup:
    """The outcomes of a request, by its number and task alone; some of it too old, or failed."""
    chance = random.Random(f"{number}:{task.id}")
    if number % 13 == 12:
        return a_failed_group(number)
    solved = random.Random(task.id).random()
    outcomes = [float(chance.random() < solved) for _ in range(4)]
    version = 0 if number % 11 == 10 else 99
    return graded(*outcomes, number=number, task=task, version=version)


def inspected(recipe: Recipe, tasks: Files, chance: random.Random, crashes: float) -> list[str]:
    """The tasks that twelve steps inspect, by an attempt after the other.

    After a crash, the next attempt begins from the last checkpoint. It asks for no other tasks.
    """
    training = recipe.training
    asked: dict[int, str] = {}
    begin = CurriculumState().model_dump_json()
    saved = (0, 0, 1.0, begin)
    step, position, keep_rate, state = saved
    curriculum = Curriculum(recipe, tasks, CurriculumState.model_validate_json(state))
    while step < 12:
        selection = Selection(recipe, Scoring.of(recipe), step, position, keep_rate)
        while not selection.is_complete:
            curriculum.assign(selection.lookahead.admitted)
            for number in range(position, selection.lookahead.admitted):
                task = curriculum.task(number)
                assert asked.setdefault(number, task.id) == task.id
            if chance.random() < crashes:
                break
            number = selection.next_number
            selection.look(an_answer(number, curriculum.task(number)))
        else:
            step += 1
            position, keep_rate = selection.next_number, selection.keep_rate
            curriculum.note([group.graded for group in selection.looked_at], step)
            after = Selection(recipe, Scoring.of(recipe), step, position, keep_rate)
            curriculum.assign(after.lookahead.admitted)
            if chance.random() < 0.6:
                saved = step, position, keep_rate, curriculum.state.model_dump_json()
            continue
        step, position, keep_rate, state = saved
        curriculum = Curriculum(recipe, tasks, CurriculumState.model_validate_json(state))
    assert max(asked) < position + recipe.groups_in_flight * training.max_oversampling
    return [asked[number] for number in range(position)]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 3),
    dynamic=st.booleans(),
    curriculum=st.sampled_from(
        [
            {"retire_above": 0.9},
            {"retire_above": 0.5, "return_after": 2},
            {"easy": 0.1, "hard": 0.4},
            {"retire_above": 1.0, "return_after": 3, "easy": 0.0, "hard": 0.3},
        ]
    ),
)
def test_crashes_change_no_task(
    seed: int, max_staleness: int, dynamic: bool, curriculum: Mapping[str, Any]
) -> None:
    recipe = mixed(
        3,
        1,
        2,
        stop="c",
        curriculum=curriculum,
        seed=seed,
        groups_per_step=4,
        dynamic_sampling=dynamic,
        max_oversampling=3,
        max_staleness=max_staleness,
    )
    tasks = files(a=9, b=5, c=12)
    undisturbed = inspected(recipe, tasks, random.Random(seed), 0.0)
    assert inspected(recipe, tasks, random.Random(seed), 0.08) == undisturbed
    if not dynamic:
        expected = Curriculum(recipe, tasks, adapts=False)
        early = 4 * (max_staleness + 1)  # nothing is known yet
        assert undisturbed[:early] == ids(expected, early)
