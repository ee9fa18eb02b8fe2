"""Sealed folders: written whole, verified file by file, and cleared by those whom they concern."""

from pathlib import Path

import pytest
from protocol import weights


def fill(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "tensors").write_text("numbers")
    (folder / "config").write_text("settings")


def test_a_written_folder_is_verified_by_what_was_announced(tmp_path: Path) -> None:
    digest = weights.write(tmp_path, "job/1.0", fill)
    weights.verify(tmp_path / "job/1.0", digest)
    with pytest.raises(weights.WeightsError, match="announced"):
        weights.verify(tmp_path / "job/1.0", "0" * 64)
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["1.0"]


@pytest.mark.parametrize("name", ["config", "part/tensors", "manifest.json"])
def test_a_file_that_has_changed_at_any_depth_is_damage(tmp_path: Path, name: str) -> None:
    fill(tmp_path)
    weights.seal(tmp_path)
    weights.verify(tmp_path)
    (tmp_path / name).write_text("Settings")
    with pytest.raises(weights.WeightsError, match=f"{name}: damaged"):
        weights.verify(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(weights.WeightsGone, match=f"{name}: gone"):
        weights.verify(tmp_path)


def test_a_superseded_attempt_clears_nothing_of_the_one_after_it(tmp_path: Path) -> None:
    names = ["1.3", ".export-1", ".unfinished-1.4", "2.3", "2.4", ".unfinished-2.5", ".export-2"]
    later = ["3.4", "10.4", ".unfinished-3.5", ".export-10"]
    for name in (*names, *later):
        (tmp_path / "job" / name).mkdir(parents=True)
    weights.retain(tmp_path, "job", 2, ["job/2.3", "job/2.4"])
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"2.3", "2.4", *later}
    weights.retain(tmp_path, "another", 1, [])


def test_a_copy_has_neither_manifest_nor_pickled_weights(tmp_path: Path) -> None:
    source, target = tmp_path / "model", tmp_path / "copy"
    source.mkdir()
    for name in ("config.json", "model.safetensors", "manifest.json", "pytorch_model.bin"):
        (source / name).write_text(name)
    weights.copy(source, target)
    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors"}
