"""The log: what was appended is there, whatever the machine did since; damage is never silent."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.exchange import Delivery
from protocol.frames import FrameError, encode, mark
from protocol.messages import GradedGroup
from protocol.recipe import Purpose
from protocol.streams import GRADED

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake
from services.learner.supply.log import GroupLog, read_log, retain
from services.learner.training.scoring import failure_kind
from tests.builders import a_recipe

APPENDS = st.lists(st.integers(1, 3), min_size=1, max_size=4)  # how many groups each has
RANDOM = settings(derandomize=True, deadline=None, max_examples=60)


def failed(number: int, failure: str = "deaths: 3 workers died") -> GradedGroup:
    return GradedGroup(purpose=Purpose.TRAIN, number=number, failure=failure)


def numbers(folder: Path, first_segment: str = "") -> list[int]:
    return [group.number for _, group in read_log(folder, first_segment)]


def append(log: GroupLog, *groups: int) -> None:
    log.append([encode(failed(number)) for number in groups])


class Written:
    """A segment in a folder of its own, and how long it was after each append."""

    def __init__(self, folder: str, appends: Sequence[int]) -> None:
        log = GroupLog(Path(folder), attempt=1)
        self.path = log.folder / log.segment
        self.totals = list(accumulate(appends))
        self.sizes: list[int] = []
        for count, total in zip(appends, self.totals, strict=True):
            append(log, *range(total - count, total))
            self.sizes.append(self.path.stat().st_size)
        self.content = self.path.read_bytes()

    def read(self, content: bytes) -> list[int]:
        """The numbers of the groups, had this been the segment."""
        self.path.write_bytes(content)
        return numbers(self.path.parent)


@contextmanager
def no_file_beyond(most_bytes: int) -> Iterator[None]:
    """As on a full disk, writing fails half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_log_gives_back_what_was_appended_across_segments_and_attempts(tmp_path: Path) -> None:
    first = GroupLog(tmp_path, attempt=1)
    append(first, 0, 1)
    first.roll()
    append(first, 2)
    append(GroupLog(tmp_path, attempt=2), 3)
    again = GroupLog(tmp_path, attempt=2)  # a number that was given before
    append(again, 4)
    again.roll()
    append(again, 5)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert numbers(tmp_path, "000001-000001.segment") == [2, 3, 4, 5]
    for torn in (b"", bytes(4096), mark(0)[:-1], mark(0)):
        (tmp_path / "000003-000000.segment").write_bytes(torn)
        assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


@given(appends=APPENDS, data=st.data())
@RANDOM
def test_whatever_a_crash_leaves_behind_the_appends_no_append_is_lost(
    appends: list[int], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        written = Written(folder, appends)
        # The first mark is on disk before any record.
        cut = data.draw(st.integers(len(mark(0)), len(written.content)))
        stray = st.integers(0, 300).map(lambda size: b"\0" + written.content[:size])
        rest = data.draw(st.just(b"") | st.integers(1, 9000).map(bytes) | st.binary() | stray)
        found = written.read(written.content[:cut] + rest)
        whole = sum(size <= cut for size in written.sizes)
        committed = ([0, *written.totals])[whole]
        begun = ([*written.totals, committed])[whole]
        assert found == list(range(len(found)))
        assert committed <= len(found) <= begun


def test_at_no_moment_does_a_mark_stand_for_what_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GroupLog(tmp_path / "log", attempt=1)
    path, sync, on_disk, found = log.folder / log.segment, os.fsync, 0, []

    def crash_before_sync(descriptor: int) -> None:
        nonlocal on_disk
        content = path.read_bytes()
        copy = tmp_path / "crashed" / path.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(content[:on_disk] + b"\0" + content[on_disk + 1 :])
        found.append(numbers(copy.parent))
        on_disk = len(content)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", crash_before_sync)
    append(log, 0, 1)
    append(log, 2)
    assert found == [[], [], [], [0, 1]]  # the first mark, the folder, two appends


def test_a_flipped_bit_is_no_silent_loss(tmp_path: Path) -> None:
    written = Written(str(tmp_path), [2, 1])
    content = bytearray(written.content)
    content[written.sizes[0] // 2] ^= 1
    with pytest.raises(FrameError, match=rf"^{written.path}: byte \d+:"):
        written.read(bytes(content))


def test_a_torn_end_is_said_once_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = Written(str(tmp_path), [2])
    assert written.read(written.content) == [0, 1]
    assert not caplog.records
    assert written.read(written.content + bytes(500)) == [0, 1]
    (said,) = caplog.records
    assert (vars(said)["path"], vars(said)["byte"]) == (str(written.path), len(written.content))


def test_an_append_after_one_that_failed_half_way_is_not_lost(tmp_path: Path) -> None:
    log = GroupLog(tmp_path, attempt=1)
    large = [encode(failed(number, "x" * 20_000)) for number in (1, 2, 3)]
    for before in ([], [0]):
        for number in before:
            append(log, number)
        sizes = {path: path.stat().st_size for path in tmp_path.iterdir()}
        with no_file_beyond(50_000), pytest.raises(OSError, match="File too large"):
            log.append(large)
        assert {path: path.stat().st_size for path in tmp_path.iterdir()} == sizes
    append(log, 4)
    append(log, 5)
    assert list(read_log(tmp_path)) == [
        ("000001-000000.segment", failed(0)),
        (log.segment, failed(4)),
        (log.segment, failed(5)),
    ]


@pytest.mark.parametrize(
    ("first_needed", "kept"),
    [("000001-000001.segment", [1, 2, 3, 4]), ("", [0, 1, 2, 3, 4])],
)
def test_the_segments_before_those_needed_go(
    tmp_path: Path, first_needed: str, kept: list[int]
) -> None:
    logs = [GroupLog(tmp_path, attempt) for attempt in (1, 2)]
    for log, number in zip(chain([logs[0]] * 3, [logs[1]] * 2), range(5), strict=True):
        append(log, number)
        log.roll()
    retain(tmp_path, first_needed)
    assert numbers(tmp_path) == kept


@pytest.mark.anyio
async def test_a_group_is_on_disk_before_it_leaves_the_exchange(tmp_path: Path) -> None:
    taken: list[tuple[str, list[int]]] = []

    class Exchange:
        async def take_in(self, delivery: Delivery[GradedGroup], attempt: int) -> None:
            taken.append((delivery.key, numbers(tmp_path / "log")))

    intake = Intake(Attempt(cast(Any, Exchange()), "job", 1, a_recipe(), tmp_path))
    group = encode(failed(4))
    for fields in (group, group, {b"header": b"{"}):  # the second time it is there already
        await intake.take_in(
            [Delivery(GRADED, "job", "1-0", f"train:{4 + len(taken) // 2}", fields)]
        )
    assert taken == [("train:4", [4]), ("train:4", [4]), ("train:5", [4, 5])]
    assert failure_kind(intake.waiting[Purpose.TRAIN, 5].failure or "") == "unreadable"
    assert intake.have(Purpose.TRAIN, range(8)) == {4, 5}
    assert Intake(intake.attempt).replay("", {Purpose.TRAIN: 5}) == 1
