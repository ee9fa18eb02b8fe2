"""What of an interrupted download is gone on with, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

from services.gateway.client.part_file import PartFile

NOON = 1_700_000_000_123_456


def test_pieces_go_on_where_the_last_ones_ended(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "a", 6, NOON)
    assert (part.here, part.is_complete) == (0, False)
    assert list(part.write([b"ab", b"cd"], 0)) == [2, 4]
    again = PartFile(tmp_path / "a", 6, NOON)
    assert again.here == 4
    assert list(again.write([b"ef"], again.here)) == [6]
    again.finish()
    assert (again.is_complete, (tmp_path / "a").read_bytes()) == (True, b"abcdef")
    assert os.listdir(tmp_path) == ["a"]


def test_what_bears_another_time_counts_for_nothing(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "a", 6, NOON)
    list(part.write([b"abcdef"], 0))
    for other in (PartFile(tmp_path / "a", 6, NOON + 1), PartFile(tmp_path / "a", 5, NOON)):
        assert other.here == 0
    (tmp_path / "a.part").write_bytes(b"abc")  # as a process leaves it that was killed in between
    assert part.here == 0
    assert list(part.write([b"xy"], 0)) == [2]
    assert (tmp_path / "a.part").read_bytes() == b"xy"


def test_a_file_of_that_name_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"older")
    part = PartFile(tmp_path / "a", 5, NOON)
    assert not part.is_complete
    list(part.write([b"newer"], 0))
    assert (tmp_path / "a").read_bytes() == b"older"
    part.finish()
    assert (tmp_path / "a").read_bytes() == b"newer"
