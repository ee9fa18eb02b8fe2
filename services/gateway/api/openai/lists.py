"""Pages of lists in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.gateway.errors import wrong

Json = dict[str, Any]


def list_object(objects: Iterable[Json], has_more: bool) -> Json:
    page = list(objects)
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }


def list_after(objects: list[Json], after: str | None, limit: int) -> Json:
    """Return the page of ``limit`` objects that follow the id ``after``."""
    if after is not None:
        ids = [element["id"] for element in objects]
        if after not in ids:
            raise wrong("after", f"there is no {after!r} in this list")
        objects = objects[ids.index(after) + 1 :]
    return list_object(objects[:limit], len(objects) > limit)
