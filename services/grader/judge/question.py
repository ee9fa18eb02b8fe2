"""A question to the judge: everything that decides its verdict, including the form to fill in.

Replies are validated strictly, even if a server promises that they follow a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ANALYSIS = "analysis"  # written first: a judge that has reasoned decides better
_MAX_ANALYSIS_CHARS = 1_500
_SEEDS_PER_ATTEMPT = 1_000_003  # no attempt shares its seed with another sample

Turn = dict[str, str]  # {"role": ..., "content": ...}
Verdict = dict[str, str | float]


class NoVerdict(ValueError):
    """The judge's reply is not the form filled in; the text says why, without quoting it."""

    reason = "no_verdict"


class CutShort(NoVerdict):
    """The model used up its tokens before it ended."""

    reason = "verdict_cut"


def text_field(description: str) -> Mapping[str, Any]:
    # No ``maxLength``: counting characters costs a server's grammar seconds to compile, and makes
    # every token a hundred times slower (xgrammar 0.2, 200 000 tokens).
    return {"type": "string", "description": description}


def choice_field(names: Sequence[str]) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(names)}


def number_field(lowest: float, highest: float) -> Mapping[str, Any]:
    return {"type": "number", "minimum": lowest, "maximum": highest}


@dataclass(frozen=True)
class Form:
    """The JSON schemas of the fields, in the order in which they are filled in."""

    fields: Mapping[str, Mapping[str, Any]]

    @property
    def instructions(self) -> str:
        head = "Answer with one JSON object and nothing else. Its fields, in this order:"
        fields = (f'- "{name}": {_describe(schema)}' for name, schema in self.fields.items())
        return "\n".join([head, *fields])

    def read(self, content: object) -> Verdict:
        """Parse a filled-in form, and shorten its analysis; `NoVerdict` if it is anything else."""
        if not isinstance(content, str):
            raise NoVerdict("there is no text")
        try:
            values = json.loads(content, object_pairs_hook=_reject_duplicates)
        except (ValueError, RecursionError) as error:
            raise NoVerdict(f"it is not JSON: {error}") from error
        if not isinstance(values, dict) or values.keys() != self.fields.keys():
            raise NoVerdict("fields are missing or unknown")
        for name, schema in self.fields.items():
            if not _fits(values[name], schema):
                raise NoVerdict(f"{name} has an invalid value")
        if ANALYSIS in values:
            values[ANALYSIS] = values[ANALYSIS][:_MAX_ANALYSIS_CHARS]
        return values


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a field occurs twice")
    return values


def _describe(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        names = (json.dumps(name, ensure_ascii=False) for name in schema["enum"])
        return "one of " + ", ".join(names)
    if schema["type"] == "number":
        return f"a number from {schema['minimum']:.15g} to {schema['maximum']:.15g}"
    return schema["description"]


def _fits(value: object, schema: Mapping[str, Any]) -> bool:
    if schema["type"] == "string":
        return isinstance(value, str) and value in schema.get("enum", [value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return schema["minimum"] <= value <= schema["maximum"]


def encode_json(value: object) -> bytes:
    """Encode JSON; a lone surrogate, which a model's text may contain, becomes a question mark."""
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

    def for_sample(self, number: int) -> Question:
        return replace(self, seed=self.seed + number)

    def for_attempt(self, number: int) -> Question:
        return self.for_sample(number * _SEEDS_PER_ATTEMPT)

    @property
    def request(self) -> dict[str, Any]:
        fields = self.form.fields
        form = {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
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
