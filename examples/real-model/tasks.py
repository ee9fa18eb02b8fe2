"""Stories of one sum or difference: `python examples/real-model/tasks.py DIR` writes three files.

Held-out stories share no sum with the others. `weir sft` learns `warm_up.jsonl`.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

HELD_OUT = 256
WARM_UP = 128
_SEED = 7
_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Jack", "Maya")
_THINGS = ("apples", "books", "cards", "coins", "cups", "eggs", "pens", "shells", "stamps")
_GAINS = ("gets", "buys", "finds")
_LOSSES = ("loses", "sells", "gives away")

Sum = tuple[int, str, int]


def stories(sums: list[Sum], draw: random.Random) -> list[dict[str, str]]:
    """Return a story of every sum for each name, in random order."""
    tasks = [_story(name, *terms, draw) for name in _NAMES for terms in sums]
    draw.shuffle(tasks)
    return tasks


def _story(name: str, first: int, sign: str, second: int, draw: random.Random) -> dict[str, str]:
    thing = draw.choice(_THINGS)
    verb = draw.choice(_GAINS if sign == "+" else _LOSSES)
    result = first + second if sign == "+" else first - second
    return {
        "prompt": f"{name} has {first} {thing} and {verb} {second}. How many now?",
        "answer": str(result),
        "solution": f"{first}{sign}{second}={result}. \\boxed{{{result}}}",
    }


def main(folder: Path) -> None:
    draw = random.Random(_SEED)
    sums = [(a, sign, b) for a in range(10, 30) for sign in "+-" for b in range(2, 10)]
    draw.shuffle(sums)
    num_held_out = len(sums) // 4
    held_out = stories(sums[:num_held_out], draw)
    train = stories(sums[num_held_out:], draw)
    files = {
        "held_out": held_out[:HELD_OUT],
        "warm_up": train[:WARM_UP],
        "train": train[WARM_UP:],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, tasks in files.items():
        lines = [json.dumps(task) + "\n" for task in tasks]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
