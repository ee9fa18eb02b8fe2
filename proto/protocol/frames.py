"""The frame of a message: a JSON header, and its arrays as raw little-endian bytes beside it.

In Redis a frame is an entry's fields, readable with redis-cli; in a log segment it is the same
fields, length-prefixed and checksummed. There is no pickle anywhere.

>>> fields = encode(JobRef(job_id="a"))
>>> fields
{b'header': b'{"type":"JobRef","version":2,"body":{"job_id":"a"},"arrays":{}}'}
>>> decode(JobRef, fields)
JobRef(job_id='a')
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, Literal, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from protocol import STORED_VERSION
from protocol.messages import JobRef, Message  # noqa: F401  (JobRef is used by the doctest)
from protocol.recipe import explain

HEADER = b"header"
_RECORD = struct.Struct("<4sIII")  # magic, number of fields, body length, crc32 of the body
_FIELD = struct.Struct("<II")  # length of the name, length of the value
_MAGIC = b"WEIR"

Fields = Mapping[bytes, bytes]
M = TypeVar("M", bound=Message)


class FrameError(ValueError):
    """Bytes that are not a frame of the expected message; the text says what is wrong."""


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: str
    version: int
    body: dict[str, Any]
    arrays: dict[str, Literal["<i4", "<f4", "|u1"]]


def encode(message: Message) -> dict[bytes, bytes]:
    """Turn a message into named fields: ``header`` and one field per array, named by its path."""
    arrays: dict[str, np.ndarray] = {}
    body = _take_arrays(message.model_dump(mode="python"), "", arrays)
    header = {
        "type": type(message).__name__,
        "version": STORED_VERSION,
        "body": body,
        "arrays": {path: array.dtype.str for path, array in arrays.items()},
    }
    fields = {HEADER: json.dumps(header, separators=(",", ":"), allow_nan=False).encode()}
    fields.update({path.encode(): array.tobytes() for path, array in arrays.items()})
    return fields


def decode(expected: type[M], fields: Fields) -> M:
    """Rebuild a message from its fields, or raise `FrameError`; its arrays are views of them."""
    header = _read_header(fields)
    if header.type != expected.__name__ or header.version != STORED_VERSION:
        raise FrameError(
            f"expected {expected.__name__} version {STORED_VERSION}, "
            f"got {header.type} version {header.version}; run one release of all services"
        )
    for path, dtype in header.arrays.items():
        _put_array(header.body, path, _read_array(fields, path, dtype))
    try:
        return expected.model_validate(header.body)
    except ValidationError as error:
        problems = explain(error, whole="message")
        raise FrameError(f"not a valid {expected.__name__}: {problems}") from error
    except Exception as error:  # of a validator that did not expect such a value
        raise FrameError(f"not a valid {expected.__name__}: {error}") from error


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
    """One record of a file: the fields, length-prefixed, with a checksum."""
    parts: list[bytes] = []
    for name, value in fields.items():
        parts += [_FIELD.pack(len(name), len(value)), name, value]
    body = b"".join(parts)
    return _RECORD.pack(_MAGIC, len(fields), len(body), zlib.crc32(body, len(fields))) + body


def unpack_all(file: BinaryIO) -> Iterator[dict[bytes, bytes]]:
    """The records of a file; a `FrameError` names the byte where one begins that is damaged."""
    place = 0
    while head := file.read(_RECORD.size):
        if len(head) < _RECORD.size or not head.startswith(_MAGIC):
            raise FrameError(f"byte {place}: no record begins here")
        _, num_fields, length, checksum = _RECORD.unpack(head)
        body = file.read(length)
        if len(body) < length or zlib.crc32(body, num_fields) != checksum:
            raise FrameError(f"byte {place}: the record is damaged, or not all there")
        yield _split_fields(body, num_fields)
        place += _RECORD.size + length


def unpack_one(file: BinaryIO) -> dict[bytes, bytes]:
    """The record of a file that holds one; a `FrameError` if it is empty, damaged or holds more."""
    records = list(islice(unpack_all(file), 2))
    if len(records) != 1:
        raise FrameError("the file is empty" if not records else "more than one record")
    return records[0]


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
