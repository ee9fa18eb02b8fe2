"""The log keeps all appended groups through crashes, and reports damage."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from protocol.exchange import Delivery
from protocol.frames import FrameError, encode
from protocol.messages import GradedGroup
from protocol.recipe import Purpose
from protocol.streams import GRADED

from services.learner.attempt import Attempt
from services.learner.supply.intake import Intake
from services.learner.supply.log import GroupLog, read_log, retain
from tests.builders import a_failed_group, a_recipe


def numbers(folder: Path, first_segment: str = "") -> list[int]:
    return [group.number for _, group in read_log(folder, first_segment)]


def append(log: GroupLog, *groups: int) -> str:
    return log.append([encode(a_failed_group(number)) for number in groups])


@contextmanager
def file_size_limit(max_bytes: int) -> Iterator[None]:
    """As on a full disk, writing fails half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE,
        (max_bytes, limits[1]),
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_log_gives_back_what_was_appended_across_attempts(tmp_path: Path) -> None:
    first, second = (GroupLog(tmp_path, attempt) for attempt in (1, 2))
    append(first, 0, 1)
    segment = append(first, 2)
    append(second, 3)
    again = GroupLog(tmp_path, attempt=2)  # a number that was given before
    append(again, 4)
    append(again, 5)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert numbers(tmp_path, segment) == [2, 3, 4, 5]


def test_two_learners_of_one_attempt_replace_nothing_of_each_other(tmp_path: Path) -> None:
    logs = [GroupLog(tmp_path, attempt=1) for _ in range(2)]
    for number in range(4):
        append(logs[number % 2], number)
    assert sorted(numbers(tmp_path)) == [0, 1, 2, 3]


def test_at_no_moment_is_a_segment_there_that_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GroupLog(tmp_path, attempt=1)
    sync = os.fsync
    visible = []

    def crash_before_sync(descriptor: int) -> None:
        visible.append(numbers(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", crash_before_sync)
    append(log, 0, 1)
    append(log, 2)
    assert visible == [[], [0, 1], [0, 1], [0, 1, 2]]  # each time the segment, then its folder


def test_damage_is_no_silent_loss(tmp_path: Path) -> None:
    segment = tmp_path / append(GroupLog(tmp_path, attempt=1), 0, 1)
    content = segment.read_bytes()
    for damaged in (content[:-1], content + b"\0"):
        segment.write_bytes(damaged)
        with pytest.raises(FrameError, match=rf"^{segment}: byte \d+: .*; move the file away"):
            numbers(tmp_path)


def test_an_append_after_one_that_failed_half_way_is_not_lost(tmp_path: Path) -> None:
    log = GroupLog(tmp_path, attempt=1)
    append(log, 0)
    large = [encode(a_failed_group(number, message="x" * 20_000)) for number in (1, 2, 3)]
    with file_size_limit(50_000), pytest.raises(OSError, match="File too large"):
        log.append(large)
    assert len(list(tmp_path.iterdir())) == 1
    append(log, 4)
    assert numbers(tmp_path) == [0, 4]


def test_the_segments_before_those_needed_go_with_what_a_crash_left(tmp_path: Path) -> None:
    logs = [GroupLog(tmp_path, attempt) for attempt in (1, 2)]
    names = [append(logs[number // 3], number) for number in range(5)]
    partial = (tmp_path / names[1]).with_suffix(".partial")
    partial.touch()
    retain(tmp_path, "")
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    retain(tmp_path, names[2])
    assert numbers(tmp_path) == [2, 3, 4]
    assert not partial.exists()
    being_written = (tmp_path / logs[1].segment).with_suffix(".partial")
    being_written.touch()
    retain(tmp_path, logs[1].segment)
    assert being_written.exists()


@pytest.mark.anyio
async def test_a_group_is_on_disk_before_it_leaves_the_exchange(tmp_path: Path) -> None:
    received: list[tuple[str, list[int]]] = []

    class Exchange:
        async def ingest(
            self,
            delivery: Delivery[GradedGroup],
            attempt: int,
        ) -> None:
            received.append((delivery.key, numbers(tmp_path / "log")))

    intake = Intake(
        Attempt(
            cast(Any, Exchange()),
            "job",
            1,
            a_recipe(),
            tmp_path,
        )
    )
    group = encode(a_failed_group(4))
    for fields in (group, group, {b"header": b"{"}):  # the second time it is there already
        await intake.ingest(
            [Delivery(GRADED, "job", "1-0", f"train:{4 + len(received) // 2}", fields)]
        )
    assert received == [("train:4", [4]), ("train:4", [4]), ("train:5", [4, 5])]
    assert str(intake.waiting[Purpose.TRAIN, 5].failure).startswith("unreadable: ")
    assert intake.have(Purpose.TRAIN, range(8)) == {4, 5}
    assert Intake(intake.attempt).replay("", {Purpose.TRAIN: 5}) == 1


@pytest.mark.anyio
async def test_a_group_that_is_logged_but_not_yet_kept_stays_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = Intake(Attempt(cast(Any, None), "job", 1, a_recipe(), tmp_path))
    needed: list[str] = []
    appended = intake.log.append

    def append_and_save(groups: list[Any]) -> str:
        segment = appended(groups)
        needed.extend((intake.first_segment_needed, segment))  # a checkpoint at that moment
        return segment

    monkeypatch.setattr(intake.log, "append", append_and_save)
    await intake._log(
        [
            (
                a_failed_group(1),
                encode(a_failed_group(1)),
            )
        ]
    )
    assert needed[0] <= needed[1]
