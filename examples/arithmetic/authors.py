"""The authors of the warm start's solutions: a careful one, and more often a careless one.

The base model must be able to do the task and yet be mostly wrong, so that reinforcement learning
has something to teach. So it imitates a mixture in which the frequent mistake is one bad habit,
forgetting the carry or the borrow: its most likely answer is wrong as well, and sharpening its
distribution does not help.
"""

import random
from dataclasses import dataclass

from examples.arithmetic.tasks import TOTALS, ArithmeticTask, boxed

CAREFUL_SHARE = 0.12


@dataclass(frozen=True)
class Habits:
    """Probabilities of the careless author's mistakes."""

    forgets_carry: float = 0.82  # per addition that needs a carry or a borrow
    slips: float = 0.08  # per other addition: off by 1 or 2
    merges: float = 0.15  # per solution: two steps in one equation
    recovers: float = 0.30  # per equation after a wrong total: continues from the true one


CARELESS = Habits()


def write_solution(task: ArithmeticTask, rng: random.Random) -> str:
    """Write one solution of the warm start's data."""
    if rng.random() < CAREFUL_SHARE:
        return task.solution
    return write_careless_solution(task, rng)


def write_careless_solution(
    task: ArithmeticTask, rng: random.Random, habits: Habits = CARELESS
) -> str:
    """Write a solution in the same form that is usually wrong."""
    total = task.first
    steps_done = 0
    equations = ""
    for steps in choose_equations(task.steps, rng, habits):
        if total != task.totals[steps_done] and rng.random() < habits.recovers:
            total = task.totals[steps_done]
        result = total
        for step in steps:
            result = add_carelessly(result, step, rng, habits)
        terms = "".join(f"{step:+d}" for step in steps)
        equations += f"{total}{terms}={result};"
        total = result
        steps_done += len(steps)
    return equations + boxed(total)


def choose_equations(
    steps: tuple[int, ...], rng: random.Random, habits: Habits
) -> list[tuple[int, ...]]:
    """Return the steps of each equation: one each, or in one place two neighbours together."""
    equations = [(step,) for step in steps]
    if rng.random() >= habits.merges:
        return equations
    at = rng.randrange(len(steps) - 1)
    return [*equations[:at], steps[at : at + 2], *equations[at + 2 :]]


def add_carelessly(total: int, step: int, rng: random.Random, habits: Habits) -> int:
    """Return the careless author's result of one addition, always within the range."""
    tens, units = divmod(total, 10)
    crosses_ten = units + step not in range(10)
    if crosses_ten and rng.random() < habits.forgets_carry:
        return tens * 10 + (units + step) % 10
    slip = rng.choice((-2, -1, 1, 2)) if rng.random() < habits.slips else 0
    # A wrong total can lead out of the range; the author then drops the hundred, or the sign.
    return (total + step + slip) % len(TOTALS)
