"""Numbers that JSON cannot hold, though Python's parser lets NaN and 1e999 in. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def non_finite(value: Any, path: str) -> Iterator[str]:
    """The dotted places of NaN and infinity in plain data."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from non_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from non_finite(item, f"{path}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield path
