"""Sealed folders: written whole, verified file by file, and cleared by those whom they concern."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from protocol import weights


def fill(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "tensors").write_text("numbers")
    (folder / "pytorch_model.bin").write_text("pickled")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "part/tensors", "manifest.json"])
def test_a_written_folder_is_verified_at_any_depth(tmp_path: Path, name: str) -> None:
    digest = weights.write(tmp_path, "job/1.0", fill)
    folder = tmp_path / "job/1.0"
    assert list((tmp_path / "job").iterdir()) == [folder]
    weights.verify(folder, digest)
    with pytest.raises(weights.WeightsError, match="announced"):
        weights.verify(folder, "0" * 64)
    (folder / name).write_text("Settings")
    with pytest.raises(weights.WeightsError, match=f"{name}: damaged"):
        weights.verify(folder)
    (folder / name).unlink()
    with pytest.raises(weights.WeightsGone, match=f"{name}: gone"):
        weights.verify(folder)


def test_a_superseded_attempt_clears_nothing_of_the_one_after_it(tmp_path: Path) -> None:
    names = ["1.3", ".export-1", ".unfinished-1.4", "2.3", "2.4", ".unfinished-2.5", ".export-2"]
    later = ["3.4", "10.4", ".unfinished-3.5", ".export-10"]
    for name in (*names, *later):
        (tmp_path / "job" / name).mkdir(parents=True)
    weights.retain(tmp_path, "job", 2, ["job/2.3", "job/2.4"])
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"2.3", "2.4", *later}
    weights.retain(tmp_path, "another", 1, [])


def test_a_version_that_somebody_reads_stays_until_the_lease_ends(tmp_path: Path) -> None:
    read = tmp_path / "job/1.0"
    free = tmp_path / "job/1.1"
    for folder in (read, free):
        folder.mkdir(parents=True)
    with weights.leased(read):
        weights.retain(tmp_path, "job", 2, [])
        assert (read.exists(), free.exists()) == (True, False)
    weights.retain(tmp_path, "job", 2, [])
    assert not read.exists()
    with pytest.raises(weights.WeightsGone), weights.leased(read):
        pass


def test_a_disk_without_locks_grants_every_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job/1.0").mkdir(parents=True)
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError("no locks here")))
    with weights.leased(tmp_path / "job/1.0"):
        pass
    weights.retain(tmp_path, "job", 1, [])
    assert not (tmp_path / "job/1.0").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "[1, 2]", "[[1, 2]]", "{}", '{"a": 1}', "[" * 9999, '{"a\\u0000": "x"}'),
        *('{"../a": "x"}', '{"/etc/hostname": "x"}', '{"part": "x"}'),
    ],
)
def test_a_manifest_that_names_no_files_of_the_folder_is_damaged(
    tmp_path: Path, manifest: str
) -> None:
    weights.write(tmp_path, "job/1.0", fill)
    (tmp_path / "job/1.0/manifest.json").write_text(manifest)
    with pytest.raises(weights.WeightsError, match="damaged"):
        weights.verify(tmp_path / "job/1.0")
