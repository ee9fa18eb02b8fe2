"""The frame of a message: a JSON header, and its arrays as raw little-endian bytes beside it.

In Redis a frame is an entry's fields, readable with redis-cli; in a log segment it is the same
fields, length-prefixed and checksummed. There is no pickle anywhere.

>>> fields = encode(JobRef(job_id="a"))
>>> fields
{b'header': b'{"type":"JobRef","version":1,"body":{"job_id":"a"},"arrays":{}}'}
>>> decode(JobRef, fields)
JobRef(job_id='a')
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Literal, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.messages import JobRef, Message  # noqa: F401  (JobRef is used by the doctest)
from protocol.recipe import explain

SCHEMA_VERSION = 1
HEADER = b"header"
_RECORD = struct.Struct("<4sIII")  # magic, number of fields, body length, crc32 of the body
_MARK = struct.Struct("<4s4xQ")  # magic, the mark's own place in its segment
_CHECKSUM = struct.Struct("<I")  # crc32 of the above, behind each: a damaged length must not lead
_FIELD = struct.Struct("<II")  # length of the name, length of the value
_MAGIC, _MARK_MAGIC = b"WEIR", b"MARK"
_MAGICS = re.compile(_MAGIC + b"|" + _MARK_MAGIC)
_HEAD_SIZE = _RECORD.size + _CHECKSUM.size
_SEARCH_BYTES = 1 << 20  # read at a time

Fields = Mapping[bytes, bytes]
M = TypeVar("M", bound=Message)


class FrameError(ValueError):
    """Bytes that are not a frame of the expected message; the text says what is wrong."""


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: str
    version: int
    body: dict[str, Any]
    arrays: dict[str, Literal["<i4", "<f4"]]


def encode(message: Message) -> dict[bytes, bytes]:
    """Turn a message into named fields: ``header`` and one field per array, named by its path."""
    arrays: dict[str, np.ndarray] = {}
    body = _take_arrays(message.model_dump(mode="python"), "", arrays)
    header = {
        "type": type(message).__name__,
        "version": SCHEMA_VERSION,
        "body": body,
        "arrays": {path: array.dtype.str for path, array in arrays.items()},
    }
    fields = {HEADER: json.dumps(header, separators=(",", ":"), allow_nan=False).encode()}
    fields.update({path.encode(): array.tobytes() for path, array in arrays.items()})
    return fields


def decode(expected: type[M], fields: Fields) -> M:
    """Rebuild a message from its fields; its arrays are read-only views of them.

    Raises:
        FrameError: if the fields are not a frame of ``expected``.
    """
    header = _read_header(fields)
    if header.type != expected.__name__ or header.version != SCHEMA_VERSION:
        raise FrameError(
            f"expected {expected.__name__} version {SCHEMA_VERSION}, "
            f"got {header.type} version {header.version}; run one release of all services"
        )
    for path, dtype in header.arrays.items():
        _put_array(header.body, path, _read_array(fields, path, dtype))
    try:
        return expected.model_validate(header.body)
    except ValidationError as error:
        problems = explain(error, whole="message")
        raise FrameError(f"not a valid {expected.__name__}: {problems}") from error


def _take_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return None
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        items = cast(dict[str, Any], value).items()
        return {key: _take_arrays(item, f"{prefix}{key}", arrays) for key, item in items}
    return value


def _read_header(fields: Fields) -> _Header:
    if HEADER not in fields:
        raise FrameError("no header among the fields; was this written by another program?")
    try:
        return _Header.model_validate_json(fields[HEADER])
    except ValidationError as error:
        raise FrameError(f"no readable header: {explain(error, whole='header')}") from error


def _read_array(fields: Fields, path: str, dtype: str) -> np.ndarray:
    try:
        return np.frombuffer(fields[path.encode()], dtype=np.dtype(dtype))
    except KeyError as error:
        raise FrameError(f"array {path}: missing") from error
    except ValueError as error:
        raise FrameError(f"array {path}: {error}") from error


def _put_array(body: dict[str, Any], path: str, array: np.ndarray) -> None:
    *parents, name = path.split(".")
    place: Any = body
    for parent in parents:
        place = place.get(parent) if isinstance(place, dict) else None
    if not isinstance(place, dict) or name not in place:
        raise FrameError(f"array {path}: the header has no place for it")
    place[name] = array


def pack(fields: Fields) -> bytes:
    """One record of a log segment: the fields, length-prefixed, with checksums."""
    parts: list[bytes] = []
    for name, value in fields.items():
        parts += [_FIELD.pack(len(name), len(value)), name, value]
    body = b"".join(parts)
    return _seal(_RECORD.pack(_MAGIC, len(fields), len(body), zlib.crc32(body))) + body


def mark(place: int) -> bytes:
    """The commit mark for this byte of a segment: whatever is before it is known to be on disk.

    A segment with marks begins with one.
    """
    return _seal(_MARK.pack(_MARK_MAGIC, place))


def unpack_all(segment: BinaryIO) -> Iterator[dict[bytes, bytes]]:
    """The records of a segment, up to its end or to a torn one, which was never acknowledged.

    What cannot be read is damaged if a mark follows, or, in a segment without marks, a record. Else
    it is torn. After each record, and after the last, ``segment.tell()`` is where it ends.

    Raises:
        FrameError: if the bytes are damaged.
    """
    has_marks = False
    while head := segment.read(_HEAD_SIZE):
        begin = segment.tell() - len(head)
        if head == mark(begin):
            has_marks = True
            continue
        try:
            fields = _read_record(segment, head)
        except FrameError as error:
            if _is_followed(segment, begin, has_marks):
                raise FrameError(f"byte {begin}: {error}") from None
            segment.seek(begin)
            return
        yield fields


def _seal(head: bytes) -> bytes:
    return head + _CHECKSUM.pack(zlib.crc32(head))


def _read_record(segment: BinaryIO, head: bytes) -> dict[bytes, bytes]:
    if not _is_head(head):
        raise FrameError("no record or mark begins here, or its head is damaged")
    _, num_fields, length, checksum = _RECORD.unpack_from(head)
    body = segment.read(length)
    if zlib.crc32(body) != checksum:
        raise FrameError("the record is damaged")
    return _split_fields(body, num_fields)


def _is_head(head: bytes) -> bool:
    return head.startswith(_MAGIC) and head == _seal(head[: _RECORD.size])


def _is_followed(segment: BinaryIO, begin: int, has_marks: bool) -> bool:
    """Whether anything after a byte proves that this byte had been on disk."""
    return any(
        head == mark(place) or (not has_marks and _is_head(head))
        for place, head in _heads_after(segment, begin)
    )


def _heads_after(segment: BinaryIO, begin: int) -> Iterator[tuple[int, bytes]]:
    """What looks like the head of a record or a mark, with its place."""
    segment.seek(begin + 1)
    window = b""
    while chunk := segment.read(_SEARCH_BYTES):
        window = window[1 - _HEAD_SIZE :] + chunk
        start = segment.tell() - len(window)
        for found in _MAGICS.finditer(window):
            yield (
                start + found.start(),
                window[found.start() : found.start() + _HEAD_SIZE],
            )


def _split_fields(body: bytes, num_fields: int) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    at = 0
    for _ in range(num_fields):
        name_length, value_length = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        name = body[at : at + name_length]
        at += name_length
        fields[name] = body[at : at + value_length]
        at += value_length
    return fields
