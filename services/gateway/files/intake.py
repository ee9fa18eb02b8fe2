"""What becomes of a file on its way in: received, checked, kept."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.gateway.errors import Problem, explain_body, from_lines
from services.gateway.files.check import TaskCheck
from services.gateway.files.form import Received, content_id, gone
from services.gateway.files.store import FileStore, StoredFile

T = TypeVar("T")
_AT_ONCE = 16
_EXPIRY = re.compile(r"expires_after\[(\w*)\]")
_HOUR_S, _MONTH_S = 3600, 30 * 24 * 3600


class ExpiresAfter(BaseModel):
    """When a file goes by itself."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=_HOUR_S, le=_MONTH_S)


class FileWish(BaseModel):
    """What the fields of an upload's form say about its file."""

    model_config = ConfigDict(extra="forbid")

    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None


@dataclass
class Intake:
    """Takes files in, up to sixteen at once."""

    shelf: FileStore
    check: TaskCheck = field(default_factory=TaskCheck)
    _under_way: int = 0

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for one file on its way in.

        Raises:
            Problem: 429 if too many are on their way already.
        """
        if self._under_way >= _AT_ONCE:
            message = f"{_AT_ONCE} uploads are under way; try again when one has ended"
            raise Problem(429, message, code="too_many_uploads", headers={"Retry-After": "2"})
        self._under_way += 1
        try:
            with self.shelf.scratch() as folder:
                yield folder
        finally:
            self._under_way -= 1

    async def keep(self, received: Received, expires_after: ExpiresAfter | None) -> StoredFile:
        """Check a file and put it on the shelf.

        Raises:
            Problem: 400 naming the wrong lines and fields.
        """
        stored = await self.checked(received, expires_after)
        return await asyncio.to_thread(self.shelf.keep, received.path, stored)

    async def checked(self, received: Received, expires_after: ExpiresAfter | None) -> StoredFile:
        """Check a file; returns what the shelf will know about it.

        Raises:
            Problem: 400 naming the wrong lines and fields.
        """
        now = int(time.time())
        expires_at = None if expires_after is None else now + expires_after.seconds
        file_id = await asyncio.to_thread(content_id, received.path, received.filename)
        # The same file has been checked before.
        contents = await asyncio.to_thread(self.shelf.find, file_id)
        contents = contents or await self.check.contents(received.path)
        return StoredFile(
            id=file_id,
            bytes=received.bytes,
            created_at=now,
            expires_at=expires_at,
            filename=received.filename,
            tasks=contents.tasks,
            columns=contents.columns,
        )


def wish_of(fields: dict[str, str]) -> FileWish:
    """The fields of a form, such as ``expires_after[seconds]``, checked.

    Raises:
        Problem: 400 naming the field that is missing, wrong or unknown.
    """
    parts = {name: found[1] for name in fields if (found := _EXPIRY.fullmatch(name))}
    expiry = {part: fields[name] for name, part in parts.items()}
    plain = {name: text for name, text in fields.items() if name not in parts}
    wish: dict[str, Any] = {"expires_after": expiry or None, **plain}
    try:
        return FileWish.model_validate(wish)
    except ValidationError as error:
        raise from_lines(explain_body(error), code="invalid_request") from error


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work on a request whose body has been read; it ends when the client leaves."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise gone()
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _intake(request: Request) -> Intake:
    return request.app.state.intake


Incoming = Annotated[Intake, Depends(_intake)]
