"""What JSON in UTF-8 cannot hold, or not every reader takes, though Python's lets it in. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 64  # pydantic's reader gives up at 200, and what comes in travels within other values


def unencodable(value: Any, path: str = "") -> Iterator[str]:
    """One line per fault in plain data: its dotted place, what is wrong, and the remedy.

    NaN, infinity, and text with a lone surrogate, which is half a character ("\\ud83d").
    """
    waiting = [(path, value)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, float) and not math.isfinite(found):
            yield f"{shown(place)}: must be a finite number"
        elif isinstance(found, str) and not found.isascii() and shown(found) != found:
            yield f"{shown(place)}: holds half a character (a lone surrogate); remove it"
        elif isinstance(found, Mapping):
            for key, item in reversed(list(found.items())):
                below = f"{place}.{key}" if place else str(key)
                waiting += [(below, item), (below, key)]
        elif isinstance(found, list | tuple):
            waiting += [(f"{place}.{index}", found[index]) for index in reversed(range(len(found)))]


def shown(text: str) -> str:
    """The text, with an escape for what UTF-8 cannot hold."""
    return text.encode(errors="backslashreplace").decode()
