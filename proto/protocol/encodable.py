"""What JSON in UTF-8 cannot hold, though Python's parser lets it in. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def unencodable(value: Any, path: str = "") -> Iterator[str]:
    """One line per fault in plain data: its dotted place, what is wrong, and the remedy.

    NaN, infinity, and text with a lone surrogate, which is half a character ("\\ud83d").
    """
    waiting = [(path, value)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, float) and not math.isfinite(found):
            yield f"{_shown(place)}: must be a finite number"
        elif isinstance(found, str) and not found.isascii() and _shown(found) != found:
            yield f"{_shown(place)}: holds half a character (a lone surrogate); remove it"
        elif isinstance(found, Mapping):
            for key, item in reversed(list(found.items())):
                below = f"{place}.{key}" if place else str(key)
                waiting += [(below, item), (below, key)]
        elif isinstance(found, list | tuple):
            waiting += [(f"{place}.{index}", found[index]) for index in reversed(range(len(found)))]


def _shown(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
