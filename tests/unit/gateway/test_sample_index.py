from __future__ import annotations

from pathlib import Path

import pytest

from services.gateway.errors import Problem
from services.gateway.samples.catalog import Order, SampleFilter
from services.gateway.samples.index import Index
from tests.sample_stores import failed_facts, record, response_facts, sample_facts, write_segment


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "samples")


def ids(index: Index) -> list[str]:
    found = index.catalog()
    rows = found.select(SampleFilter(), Order.OLDEST, None)
    return [found.response(row)["id"] for row in rows]


def test_every_response_is_listed_and_a_group_that_failed_once(index: Index) -> None:
    facts = sample_facts(
        7,
        response_facts(accuracy=None, process=0.25, reward=None),
        response_facts(accuracy=0.0, truncated=True, length=3),
        step=4,
        fate="no_signal",
    )
    write_segment(index.folder, "000001-000000", record(facts), record(failed_facts(8)))
    catalog = index.catalog()
    first, second, failed = map(catalog.response, range(3))
    nothing = {"accuracy": None, "reward": None, "process": 0.25, "truncated": False}
    assert ({"id": "train:7/0", "step": 4, "fate": "no_signal"} | nothing).items() <= first.items()
    assert {"id": "train:7/1", "accuracy": 0, "truncated": True, "length": 3}.items() <= (
        second.items()
    )
    assert {"id": "train:8", "index": None, "fate": "failed", "failure": "four deaths"}.items() <= (
        failed.items()
    )
    assert catalog.summary == {
        "groups": 2,
        "responses": 2,
        "first_step": 4,
        "last_step": 8,
        "fates": {"no_signal": 1, "failed": 1},
        "purposes": {"train": 2},
    }


def test_a_store_that_grows_is_read_from_where_it_was(index: Index) -> None:
    path = write_segment(index.folder, "000001-000000", record(sample_facts(0)))
    assert ids(index) == ["train:0/0", "train:0/1"]
    # Were the segment read again from its beginning, this damage would be found.
    with path.open("r+b") as segment:
        segment.write(b"\0" * 64)
    write_segment(index.folder, "000001-000000", record(sample_facts(1)))
    write_segment(index.folder, "000001-000001", record(sample_facts(2)))
    assert ids(index) == [f"train:{number}/{i}" for number in range(3) for i in range(2)]


def test_the_end_of_a_segment_that_is_being_written_is_read_when_it_is_whole(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    late = record(sample_facts(1))
    for cut in (5, 40, len(late) // 2, len(late) - 1):
        name = f"{cut:06d}-000000"
        path = write_segment(index.folder, name, record(sample_facts(0)), late[:cut])
        assert ids(index) == ["train:0/0", "train:0/1"], cut
        write_segment(index.folder, name, late[cut:])
        assert ids(index) == ["train:0/0", "train:0/1", "train:1/0", "train:1/1"], cut
        path.unlink()
    assert not caplog.records


def test_segments_that_went_take_their_samples_with_them(index: Index) -> None:
    first = write_segment(index.folder, "000001-000000", record(sample_facts(0)))
    write_segment(index.folder, "000001-000001", record(sample_facts(1)))
    listed = index.catalog()
    first.unlink()
    assert ids(index) == ["train:1/0", "train:1/1"]
    with pytest.raises(FileNotFoundError):
        index.read(listed.by_key["train:0"])
    with pytest.raises(Problem) as refused:
        index.find("train:0")
    assert refused.value.status_code == 404


def test_of_a_key_that_comes_again_the_last_one_counts(index: Index) -> None:
    again = record(sample_facts(0, attempt=2), ["second", "try"])
    write_segment(index.folder, "000001-000000", record(sample_facts(0)), record(sample_facts(1)))
    assert index.catalog().by_key["train:0"].attempt == 1
    write_segment(index.folder, "000002-000000", again)
    assert ids(index) == ["train:0/0", "train:0/1", "train:1/0", "train:1/1"]
    group, sampled = index.find("train:0")
    assert (group.attempt, sampled.attempt) == (2, 2)
    assert sampled.graded.group is not None
    assert sampled.graded.group.responses[0].text == "second"
    assert index.catalog().summary["groups"] == 2


def test_a_damaged_record_is_told_of_once_and_left_out_alone(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad, after = (record(sample_facts(number)) for number in range(3))
    broken = bad[:30] + b"\xff" * 40 + bad[70:]
    path = write_segment(index.folder, "000001-000000", good, broken, after)
    write_segment(index.folder, "000002-000000", record(sample_facts(3)))
    for _ in range(2):
        assert ids(index) == [f"train:{number}/{i}" for number in (0, 2, 3) for i in range(2)]
        write_segment(index.folder, path.stem, after)
    (warning,) = caplog.records
    assert warning.getMessage() == "sample left out"
