"""Slots: versions lie in the same memory in turn, and nobody's reading is written over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from protocol import weights
from protocol.weights import WeightsGone

from services.learner.durable.publish import Slot, Slots

READER = """
import sys
from pathlib import Path
from protocol import weights
with weights.leased(Path(sys.argv[1])):
    print("reads", flush=True)
    sys.stdin.read()
"""


def publish(slots: Slots, number: int) -> Slot:
    slot = slots.take(f"job/1.{number}")
    with (slot.path / "model").open("r+b" if (slot.path / "model").exists() else "wb") as file:
        file.write(b"%03d" % number)
    slots.finish(slot, f"job/1.{number}")
    return slot


def versions(root: Path) -> set[str]:
    return {path.name for path in (root / "job").iterdir()}


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path)


def test_two_slots_hold_one_version_after_the_other(slots: Slots, tmp_path: Path) -> None:
    numbers = [publish(slots, number).number for number in range(5)]
    assert numbers == [0, 1, 0, 1, 0]
    assert versions(tmp_path) == {"1.3", "1.4"}
    assert (tmp_path / "job/1.4/model").read_bytes() == b"004"
    weights.verify(tmp_path / "job/1.4")


def test_what_is_read_is_not_written_over(slots: Slots, tmp_path: Path) -> None:
    publish(slots, 0)
    with weights.leased(tmp_path / "job/1.0"):
        for number in range(1, 5):
            publish(slots, number)
        assert (tmp_path / "job/1.0/model").read_bytes() == b"000"
        weights.verify(tmp_path / "job/1.0")
    publish(slots, 5)
    assert versions(tmp_path) == {"1.3", "1.4", "1.5"}


def test_the_lease_of_a_reader_that_is_killed_ends(slots: Slots, tmp_path: Path) -> None:
    publish(slots, 0)
    command = [sys.executable, "-c", READER, str(tmp_path / "job/1.0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        publish(slots, 1)
        assert slots.take("job/1.2").number == 2
        reader.kill()
        reader.wait()
    assert slots.take("job/1.3").number == 0


def test_what_is_being_written_is_not_read(slots: Slots, tmp_path: Path) -> None:
    publish(slots, 0)
    publish(slots, 1)
    slot = slots.take("job/1.2")
    for path in (tmp_path / "job/1.0", tmp_path / "job/1.2", slot.path):
        with pytest.raises(WeightsGone), weights.leased(path):
            pass


def test_the_newest_is_there_until_the_next_is_whole_and_no_lock_outlives_the_attempt(
    tmp_path: Path,
) -> None:
    slots = Slots(tmp_path)
    publish(slots, 0)
    publish(slots, 1)
    slots.take("job/1.2")
    weights.verify(tmp_path / "job/1.1")
    del slots  # in the middle of writing
    weights.retain(tmp_path, "job", 2, [])
    assert versions(tmp_path) == set()


def test_a_version_that_is_published_again_stays_as_it_is_for_those_who_read_it(
    slots: Slots, tmp_path: Path
) -> None:
    folder = tmp_path / "job/1.0"
    first = publish(slots, 0)
    slot = slots.take("job/1.0")
    (slot.path / "model").write_bytes(b"xxx")
    assert slots.finish(slot, "job/1.0") == first.digest
    with weights.leased(folder), (folder / "model").open("rb") as file:
        for number in (0, 1, 1, 2, 3):
            publish(slots, number)
        weights.verify(folder, first.digest)
        assert file.read() == b"000"
    for number in range(4, 8):
        publish(slots, number)
    weights.verify(tmp_path / "job/1.7")
    assert not folder.exists()
