"""What the JSON bodies of requests have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from protocol.tasks import MAX_DEPTH, unencodable
from pydantic import BaseModel, ConfigDict, model_validator

from services.gateway.errors import from_lines

MAX_VALUES = 20_000


class Part(BaseModel):
    """A part of a body: nothing is converted, nothing unknown is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientPart(Part):
    """A part of a body that drops nulls, and fields that change nothing here."""

    @classmethod
    def has_effect(cls, name: str, value: Any, fields: Mapping[str, Any]) -> bool:
        """Whether one of the fields has to be read, or refused."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _drop_fields_without_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None and cls.has_effect(name, value, data)
        }


class Body(Part):
    """A whole body; 400 for what could not be written as JSON again, wherever it stands in it."""

    MOST_VALUES: ClassVar[int] = MAX_VALUES

    @model_validator(mode="before")
    @classmethod
    def _is_encodable(cls, data: Any) -> Any:
        if lines := unusable(data, cls.MOST_VALUES):
            raise from_lines(lines, code="invalid_request")
        return data


def unusable(data: Any, most_values: int = MAX_VALUES) -> list[str]:
    """One line per value of plain data that not every service and client could read again."""
    return [*_too_much(data, most_values)] or [*unencodable(data), *_beyond_64_bits(data)]


def _too_much(data: Any, most_values: int) -> Iterator[str]:
    level, depth, values = [data], 0, 0
    while level := [each for each in level if isinstance(each, Mapping | list)]:
        depth += 1
        level = [
            v for each in level for v in (each.values() if isinstance(each, Mapping) else each)
        ]
        values += len(level)
        if depth > MAX_DEPTH:
            yield f"body: nested deeper than {MAX_DEPTH} levels; make it flatter"
            return
        if values > most_values:
            yield f"body: more than {most_values:,} values; leave some out"
            return


def _beyond_64_bits(value: Any, place: str = "") -> Iterator[str]:
    """Integers that other programs round, and that are too large to reckon with as floats."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield f"{place}: must be an integer of at most 64 bits"
    items = value.items() if isinstance(value, Mapping) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from _beyond_64_bits(item, f"{place}.{key}" if place else str(key))
