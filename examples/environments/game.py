"""Higher or lower: find a number from 10 to 41 with five guesses.

`python -m examples.environments.game > examples/environments/games.jsonl` writes the tasks.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

NUMBERS = range(10, 42)
GUESSES = 5
PROMPT = "10-41?"

_NUMBER = re.compile(r"\d+")


@dataclass
class Game:
    """One number to find; `text` is the hint."""

    number: int
    guesses: int = 0
    text: str = ""
    done: bool = False
    reward: float = 0.0

    def guess(self, text: str) -> None:
        """Take the first number of the text as a guess; a text without one costs a guess, too."""
        self.guesses += 1
        match = _NUMBER.search(text)
        self.text = _answer(self.number, int(match[0])) if match else "no number."
        self.reward = float(self.text == "found.")
        self.done = self.reward > 0 or self.guesses == GUESSES


def _answer(number: int, guess: int) -> str:
    if guess == number:
        return "found."
    return "higher." if number > guess else "lower."


def records() -> Iterator[dict[str, object]]:
    """Yield a task for every number; its `metadata` goes to the server's reset."""
    messages = [{"role": "user", "content": PROMPT}]
    for number in NUMBERS:
        yield {"id": f"game-{number}", "messages": messages, "metadata": {"number": number}}


if __name__ == "__main__":
    for record in records():
        print(json.dumps(record))
