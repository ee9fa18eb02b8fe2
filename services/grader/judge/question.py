"""A question to the judge: all that decides its verdict, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from services.grader.judge.form import Form, NoVerdict

Turn = dict[str, str]  # {"role": ..., "content": ...}
_BETWEEN_ATTEMPTS = 1_000_003  # so that no attempt takes the seed of another sample
_SOME_CHANCE = 0.7


def as_json(value: object) -> bytes:
    """JSON with a question mark for half of a surrogate pair, which a model's text may hold."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


@dataclass(frozen=True)
class Question:
    """What the judge is told, the form to fill in, and how it shall sample."""

    messages: tuple[Turn, ...]
    form: Form
    reasoning_effort: str = "medium"
    max_tokens: int = 4096
    temperature: float = 0.0
    seed: int = 0

    def sample(self, number: int) -> Question:
        """The same question with the seed of another sample."""
        return replace(self, seed=self.seed + number)

    def attempt(self, number: int) -> Question:
        """The same question, asked again with another seed."""
        return self.sample(number * _BETWEEN_ATTEMPTS)

    def after(self, failure: NoVerdict) -> Question:
        """The same question for a model that gave no verdict: at temperature 0 it would repeat it.

        One that thought until its tokens were used up is asked to think less.
        """
        effort = "low" if failure.is_cut_short else self.reasoning_effort
        chance = self.temperature or _SOME_CHANCE
        return replace(self, temperature=chance, reasoning_effort=effort)

    @property
    def request(self) -> dict[str, Any]:
        """What is sent, but for the model's name."""
        schema = {"name": "verdict", "strict": True, "schema": self.form.schema}
        return {
            "messages": list(self.messages),
            "response_format": {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": self.reasoning_effort,
            "max_completion_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }

    def digest(self, judge: object) -> str:
        """Under which a verdict is remembered, of the judge that these values identify."""
        return hashlib.sha256(as_json([judge, self.request])).hexdigest()
