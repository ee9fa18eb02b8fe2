"""Links: a chain of them makes the version that it was made of, whatever has changed."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from protocol import deltas, weights
from protocol.weights import WeightsError, WeightsGone

NAME = "model-00001-of-00002.safetensors"
WORDS = 300_000  # more than four times as many as lie between one word that is told and the next


def a_version(folder: Path, words: np.ndarray) -> str:
    """A sealed version of two files; returns its digest."""
    folder.mkdir()
    (folder / NAME).write_bytes(words.astype(np.uint16).tobytes())
    (folder / "config.json").write_text("{}")
    return weights.seal(folder)


def make(links: list[Path], folder: Path, digest: str) -> None:
    deltas.apply_links(links, folder)
    weights.verify(folder, digest)


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.01, 0.3, 1.0])
def test_links_applied_in_turn_make_the_version(tmp_path: Path, share: float) -> None:
    random = np.random.default_rng(0)
    follower = tmp_path / "follower"
    follower.mkdir()
    words = random.integers(0, 2**16, WORDS)
    previous = None
    digest = ""
    links = [tmp_path / f"{number}.link" for number in range(3)]
    sizes = []
    for number, link in enumerate(links):
        version = tmp_path / f"{number}"
        digest = a_version(version, words)
        sizes.append(deltas.write_link(version, previous, link))
        make([link], follower, digest)
        previous = version
        changed = random.random(WORDS) < share
        changed[-1] = share > 0
        words[changed] = random.integers(0, 2**16, changed.sum())
    late = tmp_path / "late"
    late.mkdir()
    make(links, late, digest)
    assert sizes[1] <= sizes[0]
    assert sizes[1] < 2 * share * sizes[0] + 1000


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """The link from version 0 to version 1, both in `tmp_path`."""
    a_version(tmp_path / "0", np.zeros(WORDS))
    a_version(tmp_path / "1", np.arange(WORDS) % 4 == 0)
    deltas.write_link(tmp_path / "1", tmp_path / "0", tmp_path / "link")
    return tmp_path / "link"


@pytest.mark.parametrize("damage", [b"", b"\xff" * 2, b"\xff" * 100, b"\xff" * 200_000])
def test_a_link_that_is_damaged_or_gone_makes_no_version(
    link: Path, tmp_path: Path, damage: bytes
) -> None:
    (delta,) = link.glob("*.delta")
    delta.write_bytes(damage)
    with pytest.raises(WeightsError):
        make([link], tmp_path / "0", weights.seal(tmp_path / "1"))
    with pytest.raises(WeightsGone):
        deltas.apply_links([tmp_path / "gone"], tmp_path / "0")


def test_a_disk_that_cannot_read_and_a_missing_base_are_damage(
    link: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="gone") as caught:
        deltas.apply_links([link], tmp_path / "empty")
    assert not isinstance(caught.value, WeightsGone)
    for code, error in ((errno.EIO, WeightsError), (errno.ENOSPC, OSError)):
        failure = OSError(code, os.strerror(code), "a file")
        monkeypatch.setattr(deltas, "_apply_file", Mock(side_effect=failure))
        with pytest.raises(error):
            deltas.apply_links([link], tmp_path / "0")


def test_a_link_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_version(tmp_path / "0", np.zeros(WORDS))
    synced = list[str]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    deltas.write_link(tmp_path / "0", None, tmp_path / "link")
    unfinished = f"{tmp_path}/.unfinished-link"
    files = {f"{unfinished}/{path.name}" for path in (tmp_path / "link").iterdir()}
    assert set(synced[:-1]) == {*files, unfinished}
    assert synced[-1] == str(tmp_path)
