"""The shelf of task files: after a power cut, with an end, and with many files."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.gateway.errors import Problem
from services.gateway.files.form import content_id, file_name
from services.gateway.files.intake import wish_of
from services.gateway.files.shelf import FileShelf, StoredFile

HOUR = {
    "purpose": "fine-tune",
    "expires_after[anchor]": "created_at",
    "expires_after[seconds]": "3600",
}
TASK = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'


def put(shelf: FileShelf, name: str, **changes: Any) -> StoredFile:
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
    shelf = FileShelf(tmp_path)
    lost, kept = put(shelf, "lost.jsonl"), put(shelf, "kept.jsonl")
    assert {stored.id for stored in shelf.all()} == {lost.id, kept.id}
    (tmp_path / f"{lost.id}.json").write_text("")
    shelf = FileShelf(tmp_path)
    assert shelf.all() == [kept]
    assert shelf.find(lost.id) is None
    assert put(shelf, "lost.jsonl").id == lost.id
    assert {stored.id for stored in shelf.all()} == {lost.id, kept.id}


@pytest.mark.parametrize("left", [None, TASK[:5]])
def test_a_file_whose_content_was_lost_is_told_as_such_until_it_is_uploaded_again(
    tmp_path: Path, left: bytes | None
) -> None:
    shelf = FileShelf(tmp_path)
    lost = put(shelf, "lost.jsonl")
    spoil(shelf.path(lost.id), left)
    with pytest.raises(Problem, match="upload it again, or delete it") as caught:
        shelf.content(lost.id)
    assert caught.value.status_code == 404
    assert not shelf.is_whole(lost)
    assert put(shelf, "lost.jsonl") == lost
    assert shelf.content(lost.id).read_bytes() == TASK
    assert shelf.is_whole(lost)


@pytest.mark.parametrize(
    ("said", "changed"),
    [('"tasks":1', '"tasks":0'), ('"bytes":46', '"bytes":45'), ('"id":"file-', '"id":"file-0')],
)
def test_what_a_description_says_wrong_is_mended_by_the_next_upload(
    tmp_path: Path, said: str, changed: str
) -> None:
    shelf = FileShelf(tmp_path)
    file = put(shelf, "wrong.jsonl")
    description = tmp_path / f"{file.id}.json"
    assert said in description.read_text()
    description.write_text(description.read_text().replace(said, changed))
    assert shelf.find(file.id) != file
    assert put(shelf, "wrong.jsonl") == file
    assert shelf.find(file.id) == file
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_is_no_content(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path / "files")
    file = put(shelf, "link.jsonl")
    shelf.path(file.id).rename(tmp_path / "elsewhere")
    shelf.path(file.id).symlink_to(tmp_path / "elsewhere")
    assert not shelf.is_whole(file)


def test_a_file_whose_content_was_lost_can_be_deleted(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    lost = put(shelf, "lost.jsonl")
    shelf.path(lost.id).unlink()
    shelf.delete(lost.id)
    assert list(tmp_path.iterdir()) == []


STRANGE: dict[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_file_hides_no_other(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, strange = FileShelf(tmp_path), f"file-{0:024x}"
    kept = put(shelf, "kept.jsonl")
    STRANGE[what](tmp_path / f"{strange}.json")
    assert shelf.all() == [kept]
    assert shelf.find(strange) is None
    assert f"{strange}.json" in str([vars(record) for record in caplog.records])


def spoil(path: Path, left: bytes | None) -> None:
    path.unlink()
    if left is not None:
        path.write_bytes(left)


def test_a_file_of_an_earlier_release_is_listed(tmp_path: Path) -> None:
    name = "file-" + "0" * 24
    (tmp_path / f"{name}.json").write_text(
        f'{{"id":"{name}","object":"file","bytes":3,"created_at":1,"filename":"a.jsonl",'
        '"purpose":"fine-tune","status":"processed","tasks":1}'
    )
    (found,) = FileShelf(tmp_path).all()
    assert (found.id, found.expires_at, found.columns) == (name, None, None)


def test_of_two_uploads_of_a_file_the_longer_one_counts(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    assert put(shelf, "a", expires_at=100).expires_at == 100
    assert put(shelf, "a", expires_at=50).expires_at == 100
    assert put(shelf, "a", expires_at=200).expires_at == 200
    assert put(shelf, "a", expires_at=None).expires_at is None
    (only,) = shelf.all()
    assert put(shelf, "a", expires_at=300) == only
    assert shelf.expired() == []


def test_files_expire_at_their_time(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    past, _ = put(shelf, "past", expires_at=int(time.time())), put(shelf, "for ever")
    put(shelf, "later", expires_at=int(time.time()) + 1000)
    assert shelf.expired() == [past.id]


def test_a_list_of_many_files_reads_only_what_is_new(tmp_path: Path) -> None:
    shelf, written = FileShelf(tmp_path), put(FileShelf(tmp_path), "first")
    for number in range(1000):
        changed = written.model_copy(update={"id": f"file-{number:024x}", "created_at": number})
        (tmp_path / f"{changed.id}.json").write_text(changed.model_dump_json())
    first, again = (_cpu_seconds_of_a_list(shelf) for _ in range(2))
    assert again < first / 2
    os.utime(tmp_path, (1, 1))  # long ago
    _cpu_seconds_of_a_list(shelf)
    assert _cpu_seconds_of_a_list(shelf) < first / 50
    shelf.path(f"file-{5:024x}").touch()
    shelf.delete(f"file-{5:024x}")
    assert len(shelf.all()) == 1000


def _cpu_seconds_of_a_list(shelf: FileShelf) -> float:
    began = time.process_time()
    newest, *_ = shelf.all()
    assert newest.created_at == 999
    return time.process_time() - began


def test_what_a_killed_gateway_left_goes(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    kept = put(shelf, "kept")
    (tmp_path / ".upload-killed").mkdir()
    (tmp_path / ".upload-killed" / "tasks.jsonl").write_bytes(TASK)
    shelf.remove_leftovers()
    assert not list(tmp_path.glob(".upload-*"))
    assert shelf.all() == [kept]


def test_of_a_file_whose_description_finds_no_room_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("services.gateway.files.shelf.write_through", full)
    with pytest.raises(OSError, match="No space"):
        put(FileShelf(tmp_path), "t.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_content_that_a_crash_left_without_a_description_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = FileShelf(tmp_path)
    orphan, damaged, kept = (put(shelf, name) for name in ("orphan", "damaged", "kept"))
    (tmp_path / f"{orphan.id}.json").unlink()
    (tmp_path / f"{damaged.id}.json").write_text("")
    (tmp_path / "file-of-a-person.jsonl").write_bytes(TASK)
    shelf.path(f"file-{0:024x}").mkdir()
    assert shelf.expired() == []  # its upload may be about to describe it
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    assert shelf.expired() == [orphan.id]
    shelf.delete(orphan.id)
    assert shelf.expired() == []
    assert not shelf.path(orphan.id).exists()
    assert shelf.path(damaged.id).exists()
    assert shelf.all() == [kept]


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\t.jsonl", "t.jsonl"),
        ("a\0b\r\nX: y.jsonl", "abX: y.jsonl"),
        ("é" * 300 + ".jsonl", "é" * 124 + ".jsonl"),
        ("", "tasks.jsonl"),
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
        ({"purpose": "fine-tune", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        (
            {
                "purpose": "fine-tune",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "3599",
            },
            "expires_after.seconds",
        ),
        ({"purpose": "fine-tune", "expires_after": "1"}, "expires_after"),
        ({"purpose": "fine-tune", "purpose[a]": "1"}, "purpose[a]"),
        (HOUR | {"xexpires_after[seconds]": "4000"}, "xexpires_after[seconds]"),
        (HOUR | {"expires_after[seconds": "4000"}, "expires_after[seconds"),
        (HOUR | {"expires_after[seconds]x": "4000"}, "expires_after[seconds]x"),
        ({"purpose": "fine-tune", "file": "text"}, "file"),
    ],
)
def test_a_wrong_field_of_a_form_is_named(fields: dict[str, str], param: str) -> None:
    with pytest.raises(Problem) as caught:
        wish_of(fields)
    assert caught.value.status_code == 400
    assert caught.value.param == param
