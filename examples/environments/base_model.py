"""The data of these examples' base model: episodes by careless players, turn by turn.

`python -m examples.environments.base_model` writes the model of `examples/arithmetic` and the lines
to imitate to `runs/environments`, where `weir sft examples/environments/sft.toml DIR` finds them.
The files are always the same.
"""

import json
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from examples.arithmetic.authors import CAREFUL_SHARE, CARELESS, add_carelessly, write_solution
from examples.arithmetic.tasks import ArithmeticTask, boxed, draw_side
from examples.environments.game import NUMBERS, PROMPT, Game
from examples.environments.sums import check

FOLDER = Path("runs/environments")
ARITHMETIC = Path("examples/arithmetic/base-model")
SEED = 20
NUM_SUMS = 24_000
NUM_GAMES = 4_000
ASKS = 0.5  # share of episodes in which an author has the first sum checked
LISTENS = 0.25  # share of checks after which a careless author continues from the tool's total
MINDS_HINTS = 0.6  # share of guesses that agree with the hints
# The policy's turns end in EOS, those of tool and game in a full stop.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

Turn = tuple[str, str]  # the conversation before, and the policy's text


def play_sum(task: ArithmeticTask, rng: random.Random) -> list[Turn]:
    """Play *sum, then check*, as a careful author or, more often, as a careless one."""
    if rng.random() >= ASKS:
        return [(task.prompt, write_solution(task, rng))]
    careful = rng.random() < CAREFUL_SHARE

    def add(total: int, step: int) -> int:
        return total + step if careful else add_carelessly(total, step, rng, CARELESS)

    second, third, last = task.steps
    middle = add(task.first, second)
    claim = add(middle, third)
    chain = f"{task.first}{second:+d}={middle};{middle}{third:+d}={claim};"
    total = task.totals[2] if careful or rng.random() < LISTENS else claim
    final = add(total, last)
    before = f"{task.prompt}{chain}<eos>{check(chain)}"
    return [(task.prompt, chain), (before, f"{total}{last:+d}={final};{boxed(final)}")]


def play_game(rng: random.Random) -> list[Turn]:
    """Play a game with random guesses that only sometimes agree with the hints."""
    game = Game(rng.choice(NUMBERS))
    low = NUMBERS[0]
    high = NUMBERS[-1]
    before = PROMPT
    turns: list[Turn] = []
    while not game.done:
        guess = rng.randint(low, high) if rng.random() < MINDS_HINTS else rng.choice(NUMBERS)
        turns.append((before, f"{guess}"))
        game.guess(f"{guess}")
        before = f"{before}{guess}<eos>{game.text}"
        if game.text == "higher.":
            low = max(low, guess + 1)
        elif game.text == "lower.":
            high = min(high, guess - 1)
    return turns


def records() -> Iterator[dict[str, str]]:
    """Yield the lines of the task file, one for every turn."""
    rng = random.Random(SEED)
    tasks = islice(draw_side(rng, held_out=False), NUM_SUMS)
    episodes = [play_sum(task, rng) for task in tasks]
    episodes += [play_game(rng) for _ in range(NUM_GAMES)]
    turns = [turn for episode in episodes for turn in episode]
    for number, (prompt, solution) in enumerate(turns):
        yield {"id": f"{number}", "prompt": prompt, "answer": solution, "solution": solution}


def write_parts(folder: Path) -> None:
    """Write the first model, with a chat template, and the lines to imitate."""
    shutil.copytree(ARITHMETIC, folder / "start", dirs_exist_ok=True)
    (folder / "start" / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    with (folder / "turns.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records())


if __name__ == "__main__":
    write_parts(FOLDER)
