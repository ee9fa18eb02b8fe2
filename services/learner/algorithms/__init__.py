"""The formulas of the training algorithms, with torch and the standard library only.

A recipe names one entry of each table. To add one, write its function in the module of its kind and
add a line to the table there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class UnknownName(ValueError):
    """A recipe names an entry that no table has; the text lists the entries and the remedy."""


def pick(table: Mapping[str, F], name: str, settings: Mapping[str, Any]) -> F:
    """Return the entry ``name`` of a table with the settings bound that its signature names.

    >>> def scaled(x, *, factor): return x * factor
    >>> pick({"scaled": scaled}, "scaled", {"factor": 3, "unrelated": 0})(2)
    6

    Raises:
        UnknownName: if there is no such entry.
        ValueError: naming the missing settings that have no default.
    """
    if name not in table:
        raise UnknownName(
            f"{name!r} is none of {', '.join(table)}; if a module of your own adds it, name that "
            "module in the learner's variable WEIR_EXTENSIONS"
        )
    function = table[name]
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    missing = [p.name for p in named if p.default is p.empty and p.name not in settings]
    if missing:
        raise ValueError(f"{name} needs the settings {', '.join(missing)}")
    bound = partial(function, **{p.name: settings[p.name] for p in named if p.name in settings})
    return bound  # type: ignore[return-value]
