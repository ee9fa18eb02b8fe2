"""Forms of multipart/form-data: their one file goes straight to disk, their fields are few.

The parser runs in a thread and holds one chunk, whatever the body is.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from services.gateway.errors import Problem, too_large

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 8
_MAX_FIELD_BYTES = 1024
_MAX_HEADER_BYTES = 4096
_MAX_NAME_BYTES = 255


@dataclass
class Received:
    """A form whose file lies at ``path``."""

    path: Path
    filename: str = ""
    bytes: int = 0
    fields: dict[str, str] = field(default_factory=dict)


async def receive_form(
    request: Request, path: Path, *, file_field: str, max_bytes: int
) -> Received:
    """Read a request's form; its file is written to ``path``.

    Raises:
        Problem: 400 naming the field that is missing or unknown, 413 if the file is too large.
    """
    with path.open("wb", buffering=2**20) as file:
        reader = _Reader(Received(path), file, file_field, max_bytes)
        try:
            boundary, callbacks = _boundary(request, file_field), reader.callbacks()
            parser = MultipartParser(boundary, callbacks, max_header_size=_MAX_HEADER_BYTES)
            async for chunk in request.stream():
                await asyncio.to_thread(parser.write, chunk)
            parser.finalize()
        except FormParserError as error:
            raise _not_read(error, file_field) from error
        except ClientDisconnect as error:
            raise gone() from error
    if not reader.has_file:
        raise _no_file(file_field)
    return reader.received


def gone() -> Problem:
    """For a client that has closed its connection; nobody reads it."""
    return Problem(400, "the client left before the end of its request", code="client_gone")


def file_name(sent: str) -> str:
    """The last part of a path, as far as it can be printed, and at most 255 bytes of it."""
    name = sent.replace("\\", "/").split("/")[-1]
    name = "".join(character for character in name if character.isprintable())
    return name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore") or "tasks.jsonl"


def content_id(path: Path, filename: str) -> str:
    """The id of a file: it derives from name and content."""
    digest = hashlib.sha256(filename.encode() + b"\0")
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return f"file-{digest.hexdigest()[:24]}"


def _boundary(request: Request, file_field: str) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise _no_file(file_field)
    return options[b"boundary"]


def _not_read(error: FormParserError, file_field: str) -> Problem:
    if "header size" not in str(error):
        return Problem(400, f"body: not multipart/form-data: {error}", param="body")
    limit = f"a header of the form has more than {_MAX_HEADER_BYTES:,} bytes"
    message = f"{file_field}: {limit}; shorten the file's name"
    return Problem(400, message, param=file_field)


def _no_file(file_field: str) -> Problem:
    message = f"{file_field}: send a file as multipart/form-data"
    return Problem(400, message, param=file_field)


@dataclass
class _Reader:
    """What the parser calls for each piece of the form."""

    received: Received
    file: BinaryIO
    file_field: str
    max_bytes: int
    has_file: bool = False
    _num_parts: int = 0
    _in_file: bool = False
    _header: bytes = b""
    _value: bytes = b""
    _disposition: bytes = b""
    _name: str = ""
    _text: bytearray = field(default_factory=bytearray)

    def callbacks(self) -> MultipartCallbacks:
        """The methods below, by the parser's names for them."""
        return {
            "on_header_field": self.on_header_field,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_headers_finished": self.on_headers_finished,
            "on_part_data": self.on_part_data,
            "on_part_end": self.on_part_end,
        }

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise Problem(400, f"body: a form of more than {_MAX_PARTS} parts", param="body")
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        self._name = _decoded(options.get(b"name", b""))
        self._in_file = self._name == self.file_field
        if self._in_file:
            if self.has_file:
                raise Problem(400, f"{self._name}: send one file", param=self._name)
            self.has_file = True
            self.received.filename = file_name(_decoded(options.get(b"filename", b"")))
        elif b"filename" in options:
            raise Problem(400, f"{self._name}: unknown field; remove it", param=self._name)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._in_file:
            self._text += data[start:end]
            if len(self._text) > _MAX_FIELD_BYTES:
                message = f"{self._name}: longer than {_MAX_FIELD_BYTES} bytes; shorten it"
                raise Problem(400, message, param=self._name)
            return
        self.received.bytes += end - start
        if self.received.bytes > self.max_bytes:
            raise too_large(self.file_field, self.max_bytes)
        self.file.write(data[start:end])

    def on_part_end(self) -> None:
        if not self._in_file:
            self.received.fields[self._name] = _decoded(bytes(self._text))
            self._text.clear()


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
