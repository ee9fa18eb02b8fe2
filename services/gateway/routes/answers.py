"""Answers that several routes give: lists in OpenAI's shape, page by page, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from fastapi import Query

from services.gateway.errors import wrong

T = TypeVar("T")
Json = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=100)]
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", "content": _BYTES},
    206: {"description": "The part of it that Range asked for", "content": _BYTES},
    416: {"description": "The file is shorter", "content": {"text/plain": {}}},
}


def after_id(
    objects: list[T], after: str | None, limit: int, id_of: Callable[[T], str] = itemgetter("id")
) -> tuple[list[T], bool]:
    """Up to ``limit`` of the objects that stand after an id, and whether there are more."""
    ids = list(map(id_of, objects))
    if after is not None and after not in ids:
        raise wrong("after", f"there is no {after!r} in this list")
    rest = objects if after is None else objects[ids.index(after) + 1 :]
    return rest[:limit], len(rest) > limit


def page_of(objects: Iterable[Json], has_more: bool) -> Json:
    data = list(objects)
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {
        "object": "list",
        "data": data,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }
