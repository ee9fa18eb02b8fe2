"""What the base model of these examples is made of: episodes by careless players, turn by turn.

Run `python -m examples.environments.base_model` to write a model to start from, that of
`examples/arithmetic`, and the lines that it is to imitate to `runs/environments`, where
`weir sft examples/environments/sft.toml DIR` finds them. The same files every time.
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
ASKS = 0.5  # how often an author has the first sum checked
LISTENS = 0.25  # how often a careless author goes on from what the tool says
MINDS_HINTS = 0.6  # how often a player guesses among the numbers that are left
# The policy's turns end in EOS. What others say follows without a mark: it ends in a full stop.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

Turn = tuple[str, str]  # what came before, and what the policy says


def turns_of_sum(task: ArithmeticTask, rng: random.Random) -> list[Turn]:
    """An episode of *sum, then check*, by a careful author or, far more often, a careless one."""
    if rng.random() >= ASKS:
        return [(task.prompt, write_solution(task, rng))]
    careful = rng.random() < CAREFUL_SHARE

    def add(total: int, step: int) -> int:
        return total + step if careful else add_carelessly(total, step, rng, CARELESS)

    first, (one, two, last) = task.first, task.steps
    middle = add(first, one)
    claimed = add(middle, two)
    said = f"{first}{one:+d}={middle};{middle}{two:+d}={claimed};"
    total = task.totals[2] if careful or rng.random() < LISTENS else claimed
    final = add(total, last)
    before = f"{task.prompt}{said}<eos>{check(said)}"
    return [(task.prompt, said), (before, f"{total}{last:+d}={final};{boxed(final)}")]


def turns_of_game(rng: random.Random) -> list[Turn]:
    """A game by a player who heeds hints now and then, and guesses at random."""
    game, low, high, before, turns = Game(rng.choice(NUMBERS)), NUMBERS[0], NUMBERS[-1], PROMPT, []
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
    """The lines of the task file, one for every turn."""
    rng = random.Random(SEED)
    episodes = [turns_of_sum(t, rng) for t in islice(draw_side(rng, held_out=False), NUM_SUMS)]
    episodes += [turns_of_game(rng) for _ in range(NUM_GAMES)]
    turns = [turn for episode in episodes for turn in episode]
    for number, (prompt, solution) in enumerate(turns):
        yield {"id": f"{number}", "prompt": prompt, "answer": solution, "solution": solution}


def write_parts(folder: Path) -> None:
    """Writes the model to start from, with a chat template, and the lines it is to imitate."""
    shutil.copytree(ARITHMETIC, folder / "start", dirs_exist_ok=True)
    (folder / "start" / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    with (folder / "turns.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records())


if __name__ == "__main__":
    write_parts(FOLDER)
