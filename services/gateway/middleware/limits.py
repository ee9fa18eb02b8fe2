"""How much of a request is read: its body stops where it grows beyond what its path takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.files.shelf import too_large

_MAX_JSON_BYTES = 2**20
_MULTIPART_HEAD_BYTES = 2**16
_PART = re.compile(r"/v1/uploads/[^/]+/parts")


@dataclass(frozen=True)
class Bounded:
    """Stops reading a request's body when it grows beyond what its path takes."""

    app: ASGIApp
    max_file_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_upload = scope["path"] == "/v1/files" or _PART.fullmatch(scope["path"]) is not None
        limit = self.max_file_bytes + _MULTIPART_HEAD_BYTES if is_upload else _MAX_JSON_BYTES
        read = 0

        async def receive_bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit and is_upload:
                raise too_large("file", self.max_file_bytes)
            if read > limit:
                raise too_large("body", limit)
            return message

        await self.app(scope, receive_bounded, send)
