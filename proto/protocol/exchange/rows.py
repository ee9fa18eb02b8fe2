"""Reading of rows that many processes write: an unreadable row does not affect others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger(__name__)
_MAX_DIGITS = 20  # of a count
_named: set[str] = set()  # keys that a log line has named


def readable(key: str, rows: Iterable[R], read: Callable[[R], T]) -> Iterator[T]:
    """Yield the readable rows of a key; the first unreadable one is logged."""
    for row in rows:
        try:
            value = read(row)
        except Exception as error:  # the bytes are arbitrary
            name_bad_row(key, str(error))
        else:
            yield value


def read_count(row: tuple[bytes, bytes]) -> tuple[str, int]:
    if len(row[1]) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return row[0].decode(), int(row[1])


def name_bad_row(key: str, why: str) -> None:
    if key not in _named:
        _named.add(key)
        log.warning("a row cannot be read", extra={"key": key, "why": why[:500]})
