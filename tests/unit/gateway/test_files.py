"""The shelf of task files: after a power cut, with an end, and with many files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from services.gateway.errors import Problem
from services.gateway.files.form import content_id, file_name
from services.gateway.files.intake import wish_of
from services.gateway.files.store import FileStore, StoredFile

HOUR = {
    "purpose": "fine-tune",
    "expires_after[anchor]": "created_at",
    "expires_after[seconds]": "3600",
}
TASK = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'


def put(shelf: FileStore, name: str, **changes: Any) -> StoredFile:
    with shelf.scratch() as folder:
        part = folder / "part"
        part.write_bytes(TASK)
        stored = StoredFile(
            id=content_id(part, name), bytes=len(TASK), created_at=1, filename=name, tasks=1
        )
        return shelf.keep(part, stored.model_copy(update=changes))


def test_a_file_whose_description_was_lost_is_not_listed_until_it_is_uploaded_again(
    tmp_path: Path,
) -> None:
    shelf = FileStore(tmp_path)
    lost, kept = put(shelf, "lost.jsonl"), put(shelf, "kept.jsonl")
    assert {stored.id for stored in shelf.all()} == {lost.id, kept.id}
    (tmp_path / f"{lost.id}.json").write_text("")
    shelf = FileStore(tmp_path)
    assert shelf.all() == [kept]
    assert shelf.find(lost.id) is None
    assert put(shelf, "lost.jsonl").id == lost.id
    assert {stored.id for stored in shelf.all()} == {lost.id, kept.id}


def test_of_two_uploads_of_a_file_the_longer_one_counts(tmp_path: Path) -> None:
    shelf = FileStore(tmp_path)
    assert put(shelf, "a", expires_at=100).expires_at == 100
    assert put(shelf, "a", expires_at=50).expires_at == 100
    assert put(shelf, "a", expires_at=200).expires_at == 200
    assert put(shelf, "a", expires_at=None).expires_at is None
    (only,) = shelf.all()
    assert put(shelf, "a", expires_at=300) == only
    assert shelf.expired() == []


def test_files_expire_at_their_time(tmp_path: Path) -> None:
    shelf = FileStore(tmp_path)
    past, _ = put(shelf, "past", expires_at=int(time.time())), put(shelf, "for ever")
    put(shelf, "later", expires_at=int(time.time()) + 1000)
    assert shelf.expired() == [past.id]


def test_what_a_killed_gateway_left_goes(tmp_path: Path) -> None:
    shelf = FileStore(tmp_path)
    kept = put(shelf, "kept")
    (tmp_path / ".upload-killed").mkdir()
    (tmp_path / ".upload-killed" / "tasks.jsonl").write_bytes(TASK)
    shelf.remove_leftovers()
    assert not list(tmp_path.glob(".upload-*"))
    assert shelf.all() == [kept]


@pytest.mark.parametrize("left", [None, TASK[:5]])
def test_a_file_whose_content_was_lost_is_told_as_such_until_it_is_uploaded_again(
    tmp_path: Path, left: bytes | None
) -> None:
    shelf = FileStore(tmp_path)
    lost = put(shelf, "lost.jsonl")
    shelf.path(lost.id).unlink()
    if left is not None:
        shelf.path(lost.id).write_bytes(left)
    with pytest.raises(Problem) as caught:
        shelf.content(lost.id)
    assert (caught.value.status_code, caught.value.code) == (404, "content_lost")
    assert put(shelf, "lost.jsonl") == lost
    assert shelf.content(lost.id).read_bytes() == TASK


class CountingShelf(FileStore):
    """A shelf that counts the descriptions that it reads."""

    reads = 0

    def find(self, file_id: str) -> StoredFile | None:
        self.reads += 1
        return super().find(file_id)


def test_a_list_of_many_files_reads_only_what_is_new(tmp_path: Path) -> None:
    shelf, written = CountingShelf(tmp_path), put(FileStore(tmp_path), "first")
    for number in range(1, 10):
        other = written.model_copy(update={"id": f"file-{number:024x}"})
        (tmp_path / f"{other.id}.json").write_text(other.model_dump_json())
    for _ in range(2):
        assert len(shelf.all()) == 10
    assert shelf.reads == 10
    os.utime(tmp_path / f"file-{5:024x}.json", (1, 1))
    shelf.delete(f"file-{6:024x}")
    assert len(shelf.all()) == 9
    assert shelf.reads == 11


def test_content_that_a_crash_left_without_a_description_expires(tmp_path: Path) -> None:
    shelf = FileStore(tmp_path)
    orphan, damaged, kept = (put(shelf, name) for name in ("orphan", "damaged", "kept"))
    (tmp_path / f"{orphan.id}.json").unlink()
    (tmp_path / f"{damaged.id}.json").write_text("")
    (tmp_path / "file-of-a-person.jsonl").write_bytes(TASK)
    assert shelf.expired() == []  # its upload may be about to describe it
    an_hour_later = FileStore(tmp_path, orphaned_s=-60)
    assert an_hour_later.expired() == [orphan.id]
    an_hour_later.delete(orphan.id)
    assert an_hour_later.expired() == []
    assert shelf.path(damaged.id).exists()
    assert shelf.all() == [kept]


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\a\0b\r\n.jsonl", "ab.jsonl"),
        ("é" * 300 + ".jsonl", "é" * 124 + ".jsonl"),
        ("\ud800", "tasks.jsonl"),
    ],
)
def test_a_name_is_what_can_be_shown_of_it(sent: str, name: str) -> None:
    assert file_name(sent) == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "batch"}, "purpose"),
        ({"purpose": "fine-tune", "expires_after[seconds]": "4000"}, "expires_after.anchor"),
        (HOUR | {"expires_after[seconds]": "3599"}, "expires_after.seconds"),
        (HOUR | {"xexpires_after[seconds]": "4000"}, "xexpires_after[seconds]"),
        ({"purpose": "fine-tune", "file": "text"}, "file"),
    ],
)
def test_a_wrong_field_of_a_form_is_named(fields: dict[str, str], param: str) -> None:
    with pytest.raises(Problem) as caught:
        wish_of(fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)
