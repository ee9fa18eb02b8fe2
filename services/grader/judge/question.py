"""A question to the judge: all that decides its verdict, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from protocol.rewards import AskedOfAJudge

from services.grader.judge.form import Form
from services.grader.judge.identity import Identity

Turn = dict[str, str]  # {"role": ..., "content": ...}
_BETWEEN_ATTEMPTS = 1_000_003  # so that no attempt takes the seed of another sample
_SOME_CHANCE = 0.7


@dataclass(frozen=True)
class Question:
    """What the judge is told, the form to fill in, and how it shall sample."""

    messages: tuple[Turn, ...]
    form: Form
    reasoning_effort: str = "medium"
    max_tokens: int = 4096
    temperature: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, check: AskedOfAJudge, messages: tuple[Turn, ...], form: Form) -> Question:
        """The first sample that a check asks for."""
        return cls(
            messages,
            form,
            reasoning_effort=check.reasoning_effort,
            max_tokens=check.max_tokens,
            temperature=check.temperature,
            seed=check.seed,
        )

    def sample(self, number: int) -> Question:
        """The same question with the seed of another sample."""
        return replace(self, seed=self.seed + number)

    def attempt(self, number: int) -> Question:
        """The same question, asked again with another seed."""
        return replace(self, seed=self.seed + number * _BETWEEN_ATTEMPTS)

    def by_chance(self) -> Question:
        """The same question for a model that gave no verdict: at temperature 0 it would repeat it.

        A higher temperature is left as it is.
        """
        return replace(self, temperature=self.temperature or _SOME_CHANCE)

    def in_brief(self) -> Question:
        """The same question for a model that thought until its tokens were used up."""
        return replace(self, reasoning_effort="low")

    def body(self, model: str) -> dict[str, Any]:
        """The request for a chat completion."""
        schema = {"name": "verdict", "strict": True, "schema": self.form.schema}
        return {
            "model": model,
            "messages": list(self.messages),
            "response_format": {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": self.reasoning_effort,
            "max_completion_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": False,
        }

    def digest(self, judge: Identity) -> str:
        """Under which a verdict of this judge is remembered."""
        return hashlib.sha256(as_json([asdict(judge), self.body(judge.name)])).hexdigest()


def as_json(value: object) -> bytes:
    """What is sent and what is digested."""
    return as_utf8(json.dumps(value, ensure_ascii=False))


def as_utf8(text: str) -> bytes:
    """With a question mark for half of a surrogate pair, which a model's text may hold."""
    return text.encode(errors="replace")
