"""The base classes of JSON bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from protocol.tasks import MAX_DEPTH, unencodable
from pydantic import BaseModel, ConfigDict, model_validator

from services.gateway.errors import from_lines

MAX_VALUES = 20_000
MAX_INTEGER = 2**63


class Part(BaseModel):
    """A part of a body: values are not converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientPart(Part):
    """A part of a body that drops nulls, and fields that change nothing here."""

    @classmethod
    def has_effect(cls, name: str, value: Any, fields: Mapping[str, Any]) -> bool:
        """Whether one of the fields has to be read, or refused."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _drop_fields_without_effect(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {
            name: value
            for name, value in fields.items()
            if value is not None and cls.has_effect(name, value, fields)
        }


class Body(Part):
    """A whole body; 400 for a value that could not be written as JSON again."""

    MAX_VALUES: ClassVar[int] = MAX_VALUES

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, body: Any) -> Any:
        lines = find_problems(body, cls.MAX_VALUES)
        if lines:
            raise from_lines(lines, code="invalid_request")
        return body


def find_problems(body: Any, max_values: int = MAX_VALUES) -> list[str]:
    """Return one line per value that not every service and client could read again."""
    size_problem = _size_problem(body, max_values)
    return [size_problem] if size_problem else [*unencodable(body), *_find_large_integers(body)]


def _size_problem(body: Any, max_values: int) -> str | None:
    level = [body]
    depth = 0
    num_values = 0
    while containers := [value for value in level if isinstance(value, Mapping | list)]:
        level = []
        for container in containers:
            level += container.values() if isinstance(container, Mapping) else container
        depth += 1
        num_values += len(level)
        if depth > MAX_DEPTH:
            return f"body: nested deeper than {MAX_DEPTH} levels; make it flatter"
        if num_values > max_values:
            return f"body: more than {max_values:,} values; leave some out"
    return None


def _find_large_integers(value: Any, path: str = "") -> Iterator[str]:
    """Yield integers that other programs round, and that do not fit into a float."""
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        yield f"{path}: must be an integer of at most 64 bits"
    items = value.items() if isinstance(value, Mapping) else ()
    for key, element in enumerate(value) if isinstance(value, list) else items:
        yield from _find_large_integers(element, f"{path}.{key}" if path else str(key))
