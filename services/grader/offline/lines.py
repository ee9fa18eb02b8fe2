"""Lines of JSON, whatever their bytes are: read one at a time, as an object or what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from protocol.tasks import raw_lines

from services.grader.offline.aside import Aside

MAX_LINE_BYTES = 64 << 20


class UnreadableLine(ValueError):
    """A line that cannot be used; the text says why."""


@dataclass(frozen=True)
class RawLine:
    """The bytes of a line, and its number from 1."""

    number: int
    raw: bytes

    def fields(self) -> dict[str, Any]:
        """The JSON object of the line.

        Raises:
            UnreadableLine: if it is none.
        """
        if len(self.raw) > MAX_LINE_BYTES:
            raise UnreadableLine(f"longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            value = json.loads(self.raw.decode())
        except UnicodeDecodeError as error:
            where = f"byte {error.start + 1} of the line is 0x{self.raw[error.start]:02x}"
            raise UnreadableLine(f"not UTF-8: {where}") from error
        except json.JSONDecodeError as error:
            what = f"{error.msg} at character {error.pos + 1}" if self.raw.strip() else "blank"
            raise UnreadableLine(f"not JSON: {what}") from error
        except ValueError as error:  # an integer of thousands of digits
            raise UnreadableLine(f"not readable JSON: {error}") from error
        except RecursionError as error:
            raise UnreadableLine("not readable JSON: nested too deeply") from error
        if not isinstance(value, dict):
            raise UnreadableLine("no JSON object")
        return value


async def lines_of(file: BinaryIO) -> AsyncIterator[RawLine]:
    """The lines of a file of any size, each read when it is asked for.

    Raises:
        OSError: if it cannot be read.
    """
    aside, lines = Aside(), raw_lines(file, MAX_LINE_BYTES)
    number = 0
    while (raw := await aside.call(next, lines, None)) is not None:
        number += 1
        yield RawLine(number, raw)
        del raw  # it may be long
