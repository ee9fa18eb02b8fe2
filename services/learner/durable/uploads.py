"""Uploaded files: an id is a digest of the name and the content, so it reveals damage."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from services.learner.attempt import MachineFault


def check_upload(path: Path) -> None:
    """Raise a `MachineFault` if the content of an uploaded file has changed.

    A file without a readable description is not checked.
    """
    name = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        name = str(json.loads(path.with_suffix(".json").read_bytes())["filename"])
    if name is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.sha256(f"{name}\0".encode()))
    if not path.stem.endswith(digest.hexdigest()[:24]):
        raise MachineFault(f"{path} is damaged; upload the file again, or restore it from a backup")
