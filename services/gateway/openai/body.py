"""What the JSON bodies of requests have in common."""

from __future__ import annotations

from typing import Any

from protocol.encodable import unencodable
from pydantic import BaseModel, ConfigDict, model_validator

from services.gateway.errors import from_lines


class Part(BaseModel):
    """A part of a body: nothing is converted, nothing unknown is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Body(Part):
    """A whole body. What could not be written as JSON again is refused wherever it stands in it.

    Raises:
        Problem: 400 naming each place.
    """

    @model_validator(mode="before")
    @classmethod
    def _is_encodable(cls, data: Any) -> Any:
        if lines := list(unencodable(data)):
            raise from_lines(lines, code="invalid_request")
        return data
