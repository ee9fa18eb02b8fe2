"""Frames of messages: a JSON header, and arrays as raw little-endian bytes.

In Redis a frame is the fields of an entry, readable with redis-cli. In a file it is a record: the
same fields with lengths and a checksum. No frame uses pickle.

>>> fields = encode(JobRef(job_id="a"))
>>> fields
{b'header': b'{"type":"JobRef","version":2,"body":{"job_id":"a"},"arrays":{}}'}
>>> decode(JobRef, fields)
JobRef(job_id='a')
"""

from __future__ import annotations

import io
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
from protocol.recipe_files import explain

HEADER = b"header"
_RECORD = struct.Struct("<4sIII")  # magic, number of fields, body length, crc32 of the body
_FIELD = struct.Struct("<II")  # length of the name, length of the value
_MAGIC = b"WEIR"

Fields = Mapping[bytes, bytes]
M = TypeVar("M", bound=Message)


class FrameError(ValueError):
    """Bytes that are not a frame of the expected message."""


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: str
    version: int
    body: dict[str, Any]
    arrays: dict[str, Literal["<i4", "<f4", "|u1"]]


def encode(message: Message) -> dict[bytes, bytes]:
    """Return a message as fields: ``header``, and one per array, named by its path."""
    arrays: dict[str, np.ndarray] = {}
    body = _take_arrays(message.model_dump(mode="python"), "", arrays)
    header = {
        "type": type(message).__name__,
        "version": STORED_VERSION,
        "body": body,
        "arrays": {path: array.dtype.str for path, array in arrays.items()},
    }
    fields = {HEADER: json.dumps(header, separators=(",", ":"), allow_nan=False).encode()}
    for path, array in arrays.items():
        fields[path.encode()] = array.tobytes()
    return fields


def decode(expected: type[M], fields: Fields) -> M:
    """Parse the fields of a message, or raise `FrameError`; arrays are views of the fields."""
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
    except Exception as error:  # a validator may fail on an unexpected value
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
        raise FrameError("the fields have no header; another program wrote them")
    try:
        return _Header.model_validate_json(fields[HEADER])
    except ValidationError as error:
        raise FrameError(f"the header is unreadable: {explain(error, whole='header')}") from error


def _read_array(fields: Fields, path: str, dtype: str) -> np.ndarray:
    try:
        return np.frombuffer(fields[path.encode()], dtype=np.dtype(dtype))
    except KeyError as error:
        raise FrameError(f"array {path}: missing") from error
    except ValueError as error:
        raise FrameError(f"array {path}: {error}") from error


def _put_array(body: dict[str, Any], path: str, array: np.ndarray) -> None:
    *parents, name = path.split(".")
    table: Any = body
    for parent in parents:
        table = table.get(parent) if isinstance(table, dict) else None
    if not isinstance(table, dict) or name not in table:
        raise FrameError(f"array {path}: the header has no place for it")
    table[name] = array


def pack(fields: Fields) -> bytes:
    """Return one record of a file: the fields with their lengths and a checksum."""
    parts: list[bytes] = []
    for name, value in fields.items():
        parts.append(_FIELD.pack(len(name), len(value)))
        parts.append(name)
        parts.append(value)
    body = b"".join(parts)
    checksum = zlib.crc32(body, len(fields))
    return _RECORD.pack(_MAGIC, len(fields), len(body), checksum) + body


def unpack_all(file: BinaryIO) -> Iterator[dict[bytes, bytes]]:
    """Yield the records of a file; a `FrameError` names the first byte of a damaged one."""
    offset = 0
    while head := file.read(_RECORD.size):
        if len(head) < _RECORD.size or not head.startswith(_MAGIC):
            raise FrameError(f"byte {offset}: no record begins here")
        _, num_fields, length, checksum = _RECORD.unpack(head)
        body = file.read(length)
        if len(body) < length or zlib.crc32(body, num_fields) != checksum:
            raise FrameError(f"byte {offset}: the record is damaged or incomplete")
        yield _split_fields(body, num_fields)
        offset += _RECORD.size + length


def unpack_one(file: BinaryIO) -> dict[bytes, bytes]:
    """Read the only record of a file; raise `FrameError` if it is damaged or not the only one."""
    records = list(islice(unpack_all(file), 2))
    if len(records) != 1:
        raise FrameError("the file is empty" if not records else "more than one record")
    return records[0]


def _split_fields(body: bytes, num_fields: int) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    file = io.BytesIO(body)
    for _ in range(num_fields):
        name_length, value_length = _FIELD.unpack(file.read(_FIELD.size))
        name = file.read(name_length)
        fields[name] = file.read(value_length)
    return fields
