"""Who writes the data of the warm start: a careful author, and a careless one far more often.

The base model must be able to do the task and yet be mostly wrong, or there is nothing left for
reinforcement learning to teach. So it imitates a mixture in which the frequent mistake is one
and the same bad habit, forgetting the carry or the borrow: its most likely answer is wrong as well,
and merely sharpening what it knows does not help.
"""

import random
from dataclasses import dataclass

from examples.arithmetic.tasks import TOTALS, ArithmeticTask, boxed

CAREFUL_SHARE = 0.12


@dataclass(frozen=True)
class Habits:
    """How often the careless author does what."""

    forgets_carry: float = 0.82  # per addition that needs a carry or a borrow
    slips: float = 0.08  # per addition that did not forget: off by 1 or 2
    merges: float = 0.15  # per solution: two steps in one equation, both done in the head
    recovers: float = 0.30  # per equation that follows a wrong total: goes on from the true one


CARELESS = Habits()


def write_solution(task: ArithmeticTask, rng: random.Random) -> str:
    """One answer of the warm start's data."""
    if rng.random() < CAREFUL_SHARE:
        return task.solution
    return write_careless_solution(task, rng)


def write_careless_solution(
    task: ArithmeticTask, rng: random.Random, habits: Habits = CARELESS
) -> str:
    """An answer of the careless author, wrong more often than not, in the same form."""
    total, steps_done, written = task.first, 0, ""
    for steps in choose_equations(task.steps, rng, habits):
        if total != task.totals[steps_done] and rng.random() < habits.recovers:
            total = task.totals[steps_done]
        result = total
        for step in steps:
            result = add_carelessly(result, step, rng, habits)
        written += f"{total}{''.join(f'{step:+d}' for step in steps)}={result};"
        total, steps_done = result, steps_done + len(steps)
    return written + boxed(total)


def choose_equations(
    steps: tuple[int, ...], rng: random.Random, habits: Habits
) -> list[tuple[int, ...]]:
    """The steps that each equation will hold: one each, or once two neighbours together."""
    equations = [(step,) for step in steps]
    if rng.random() >= habits.merges:
        return equations
    at = rng.randrange(len(steps) - 1)
    return [*equations[:at], steps[at : at + 2], *equations[at + 2 :]]


def add_carelessly(total: int, step: int, rng: random.Random, habits: Habits) -> int:
    """The result of one addition as the careless author sees it; always within the range."""
    tens, units = divmod(total, 10)
    crosses_ten = units + step not in range(10)
    if crosses_ten and rng.random() < habits.forgets_carry:
        return tens * 10 + (units + step) % 10
    slip = rng.choice((-2, -1, 1, 2)) if rng.random() < habits.slips else 0
    # A wrong total can lead out of the range; the author then drops the hundred, or the sign.
    return (total + step + slip) % len(TOTALS)
