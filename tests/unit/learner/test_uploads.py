"""Uploaded files: damage shows by their ids, and those without a description are taken as is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from services.gateway.core.files.store import copy_with_id
from services.learner.attempt import MachineFault
from services.learner.durable.uploads import check_upload


def test_an_upload_whose_content_has_changed_is_named_until_it_is_uploaded_again(
    tmp_path: Path,
) -> None:
    part = tmp_path / "part"
    content = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'
    file_id = copy_with_id(io.BytesIO(content), "tasks ü.jsonl", part)
    path = part.rename(tmp_path / f"{file_id}.jsonl")
    description = tmp_path / f"{file_id}.json"
    description.write_text(json.dumps({"id": file_id, "filename": "tasks ü.jsonl"}))
    check_upload(path)
    path.write_bytes(content.replace(b"2", b"3"))
    with pytest.raises(MachineFault, match=f"{path.name} is damaged; upload the file again"):
        check_upload(path)
    path.write_bytes(content)
    check_upload(path)
    for text in ("", "[]", "{}"):
        description.write_text(text)
        check_upload(path)
