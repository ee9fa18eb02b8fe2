"""The task family: a running total over three signed digits, and the split into train and held-out.

Run `python -m examples.arithmetic.tasks OUT_DIR` to write `train.jsonl` and `held_out.jsonl`.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

FIRST_NUMBERS = range(10, 90)
TOTALS = range(0, 100)
SIGNED_DIGITS = tuple(digit for digit in range(-9, 10) if digit != 0)
STEPS_PER_TASK = 3

TASK_SEED = 20
NUM_TRAIN = 4_000
NUM_HELD_OUT = 512
HELD_OUT_MODULUS = 10


@dataclass(frozen=True)
class ArithmeticTask:
    """A first number and the signed digits to add to it, one after the other."""

    first: int
    steps: tuple[int, ...]

    @property
    def prompt(self) -> str:
        return f"{self.first}{''.join(f'{step:+d}' for step in self.steps)}=?"

    @property
    def totals(self) -> tuple[int, ...]:
        """The true running totals, the first number included: one more than there are steps."""
        return tuple(accumulate(self.steps, initial=self.first))

    @property
    def answer(self) -> str:
        return str(self.totals[-1])

    @property
    def solution(self) -> str:
        rows = zip(self.totals, self.steps, self.totals[1:], strict=False)
        equations = "".join(f"{before}{step:+d}={after};" for before, step, after in rows)
        return f"{equations}{boxed(self.totals[-1])}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.prompt.encode()).hexdigest()

    @property
    def is_held_out(self) -> bool:
        """A property of the prompt alone, so that no later draw can leak a held-out task."""
        return int(self.digest, 16) % HELD_OUT_MODULUS == 0

    @property
    def record(self) -> dict[str, str]:
        return {
            "id": f"arithmetic-{self.digest[:12]}",
            "prompt": self.prompt,
            "answer": self.answer,
            "solution": self.solution,
        }


def boxed(total: int) -> str:
    """The final answer, in the notation that graders look for."""
    return f"\\boxed{{{total}}}"


def draw_task(rng: random.Random, num_steps: int = STEPS_PER_TASK) -> ArithmeticTask:
    """A random task, each digit chosen among those that keep the total in range."""
    first = total = rng.choice(FIRST_NUMBERS)
    steps = []
    for _ in range(num_steps):
        step = rng.choice([digit for digit in SIGNED_DIGITS if total + digit in TOTALS])
        steps.append(step)
        total += step
    return ArithmeticTask(first, tuple(steps))


def draw_side(
    rng: random.Random, *, held_out: bool, num_steps: int = STEPS_PER_TASK
) -> Iterator[ArithmeticTask]:
    """Random tasks of one side of the split, without end; a task may come twice."""
    while True:
        task = draw_task(rng, num_steps)
        if task.is_held_out == held_out:
            yield task


def distinct_tasks(
    count: int, *, held_out: bool, seed: int = TASK_SEED, num_steps: int = STEPS_PER_TASK
) -> list[ArithmeticTask]:
    """The first `count` different tasks that the seed draws on one side of the split."""
    chosen: dict[ArithmeticTask, None] = {}
    for task in draw_side(random.Random(seed), held_out=held_out, num_steps=num_steps):
        chosen[task] = None
        if len(chosen) == count:
            break
    return list(chosen)


def to_jsonl(tasks: Iterable[ArithmeticTask]) -> str:
    """One JSON object a line."""
    return "".join(f"{json.dumps(task.record)}\n" for task in tasks)


def write_task_files(folder: Path) -> None:
    """Writes both sides of the split; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    train = distinct_tasks(NUM_TRAIN, held_out=False)
    held_out = distinct_tasks(NUM_HELD_OUT, held_out=True)
    (folder / "train.jsonl").write_text(to_jsonl(train))
    (folder / "held_out.jsonl").write_text(to_jsonl(held_out))


if __name__ == "__main__":
    write_task_files(Path(sys.argv[1]))
