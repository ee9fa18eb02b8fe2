"""A question to the judge: all that decides its verdict, the form to fill in among it.

A server may promise that its replies follow a schema. The strict reader here does not believe it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ANALYSIS = "analysis"  # written first: a judge that has reasoned decides better
_KEPT_CHARS = 1_500  # of an analysis
_BETWEEN_ATTEMPTS = 1_000_003  # so that no attempt takes the seed of another sample

Turn = dict[str, str]  # {"role": ..., "content": ...}
Verdict = dict[str, str | float]


class NoVerdict(ValueError):
    """The judge's text is not a form filled in; the text says why, without quoting the judge."""

    reason = "no_verdict"


class CutShort(NoVerdict):
    """The model's tokens were used up before it had ended."""

    reason = "verdict_cut"


def words(what: str) -> Mapping[str, Any]:
    # No ``maxLength``: to count characters costs a server's grammar seconds to compile and a
    # hundred times as long for every token (xgrammar 0.2, 200 000 tokens).
    return {"type": "string", "description": what}


def one_of(names: Sequence[str]) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(names)}


def number_within(lowest: float, highest: float) -> Mapping[str, Any]:
    return {"type": "number", "minimum": lowest, "maximum": highest}


@dataclass(frozen=True)
class Form:
    """The schema of each field by its name, in the order in which they are filled in."""

    fields: Mapping[str, Mapping[str, Any]]

    @property
    def instructions(self) -> str:
        head = "Answer with one JSON object and nothing else. Its fields, in this order:"
        fields = (f'- "{name}": {_in_words(schema)}' for name, schema in self.fields.items())
        return "\n".join([head, *fields])

    def read(self, content: object) -> Verdict:
        """`NoVerdict` unless ``content`` is exactly the form filled in; an analysis is cut."""
        if not isinstance(content, str):
            raise NoVerdict("there is no text")
        try:
            values = json.loads(content, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise NoVerdict(f"it is not JSON: {error}") from error
        if not isinstance(values, dict) or values.keys() != self.fields.keys():
            raise NoVerdict("fields are missing or too many")
        for name, schema in self.fields.items():
            if not _fits(values[name], schema):
                raise NoVerdict(f"{name} holds what it may not")
        if ANALYSIS in values:
            values[ANALYSIS] = values[ANALYSIS][:_KEPT_CHARS]
        return values


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a field is there twice")
    return values


def _in_words(schema: Mapping[str, Any]) -> str:
    if names := schema.get("enum"):
        return "one of " + ", ".join(json.dumps(name, ensure_ascii=False) for name in names)
    if schema["type"] == "number":
        return f"a number from {schema['minimum']:.15g} to {schema['maximum']:.15g}"
    return schema["description"]


def _fits(value: object, schema: Mapping[str, Any]) -> bool:
    if schema["type"] == "string":
        return isinstance(value, str) and value in schema.get("enum", [value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return schema["minimum"] <= value <= schema["maximum"]


def as_json(value: object) -> bytes:
    """JSON with a question mark for half of a surrogate pair, which a model's text may hold."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


@dataclass(frozen=True)
class Question:
    messages: tuple[Turn, ...]
    form: Form
    reasoning_effort: str = "medium"
    template_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_tokens: int = 16_384
    temperature: float = 0.0
    seed: int = 0

    def sample(self, number: int) -> Question:
        return replace(self, seed=self.seed + number)

    def attempt(self, number: int) -> Question:
        return self.sample(number * _BETWEEN_ATTEMPTS)

    @property
    def request(self) -> dict[str, Any]:
        fields = self.form.fields
        form = {"type": "object", "properties": fields, "required": list(fields)}
        form |= {"additionalProperties": False}
        schema = {"name": "verdict", "strict": True, "schema": form}
        options = {"chat_template_kwargs": self.template_options} if self.template_options else {}
        return {
            "messages": list(self.messages),
            "response_format": {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": self.reasoning_effort,
            **options,
            "max_completion_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
