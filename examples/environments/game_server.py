# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""*Higher or lower* behind an OpenEnv server: ``python -m examples.environments.game_server``."""

import random

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from examples.environments.game import NUMBERS, Game

SESSIONS = 64  # games at the same time
PORT = 8790


class Guess(Action):
    text: str


class Hint(Observation):
    text: str


class HigherOrLower(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.game = Game(NUMBERS[0])

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        number: int | None = None,
        **_: object,
    ) -> Hint:
        """A new game, with the task's number or one that the seed draws."""
        self.game = Game(random.Random(seed).choice(NUMBERS) if number is None else number)
        return self._hint()

    def step(self, action: Guess, timeout_s: float | None = None, **_: object) -> Hint:
        self.game.guess(action.text)
        return self._hint()

    def _hint(self) -> Hint:
        game = self.game
        return Hint(text=game.text, done=game.done, reward=game.reward if game.done else None)

    @property
    def state(self) -> State:
        return State(step_count=self.game.guesses)


if __name__ == "__main__":
    app = create_app(HigherOrLower, Guess, Hint, env_name="game", max_concurrent_envs=SESSIONS)
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
