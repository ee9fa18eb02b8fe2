"""The shelf of task files, after a power cut."""

from __future__ import annotations

import io
from pathlib import Path

from services.gateway.files.shelf import FileShelf

TASK = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'


def test_a_file_whose_description_was_lost_is_not_listed_until_it_is_uploaded_again(
    tmp_path: Path,
) -> None:
    shelf = FileShelf(tmp_path)
    lost = shelf.put(io.BytesIO(TASK), "lost.jsonl")
    kept = shelf.put(io.BytesIO(TASK), "kept.jsonl")
    (tmp_path / f"{lost.id}.json").write_text("")
    assert shelf.all() == [kept]
    assert shelf.find(lost.id) is None
    assert shelf.put(io.BytesIO(TASK), "lost.jsonl").id == lost.id
    assert {stored.id for stored in shelf.all()} == {lost.id, kept.id}
