"""What the gateway makes of the files of a sample store, which come, go, and may be damaged."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from services.gateway.errors import Problem
from services.gateway.samples.store import Order, SampleFilter, Store
from tests.sample_stores import a_failed_sample, a_response, a_sample, write_samples


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "samples")


def keys(store: Store) -> list[str]:
    store.look()
    rows = store.select(SampleFilter(), Order.OLDEST, None, 1000)
    return [f"{row['attempt']}.{row['key']}/{row['index']}" for row in rows]


def test_the_whole_store_is_counted_and_a_group_that_failed_is_a_row(store: Store) -> None:
    lost = a_response(accuracy=None, process=0.25, reward=None)
    write_samples(
        store.folder,
        a_sample(7, lost, a_response(length=3), step=4, fate="no_signal"),
        a_failed_sample(8),
    )
    assert keys(store) == ["1.train:7/0", "1.train:7/1", "1.train:8/None"]
    assert store.look() == {
        "groups": 2,
        "responses": 2,
        "first_step": 4,
        "last_step": 8,
        "fates": {"no_signal": 1, "deaths": 1},
        "purposes": {"train": 2},
        "damaged": [],
    }


def test_files_that_come_change_and_go_are_noticed_and_no_other_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = write_samples(store.folder, a_sample(0, a_response()), a_sample(1, a_response()))
    assert keys(store) == ["1.train:0/0", "1.train:1/0"]
    taken_in: list[str] = []
    monkeypatch.setattr(store, "_take_in", lambda names: taken_in.extend(names) or set())
    write_samples(store.folder, a_sample(1), a_sample(2))
    first.unlink()
    assert keys(store) == []
    assert taken_in == ["000001-train-000001.parquet", "000002-train-000001.parquet"]


def test_a_step_that_is_made_again_supersedes_what_earlier_attempts_left_from_there_on(
    store: Store,
) -> None:
    for attempt, steps in ((1, range(4)), (10, range(2, 3)), (9, range(1, 4))):
        groups = [
            a_sample(n, a_response(), texts=[f"by {attempt}"], attempt=attempt) for n in steps
        ]
        write_samples(store.folder, *groups)
    write_samples(store.folder, a_sample(3, a_response(), purpose="eval"))
    assert keys(store) == ["1.train:0/0", "9.train:1/0", "10.train:2/0", "1.eval:3/0"]
    assert store.group("train:2")[0]["text"] == "by 10"
    with pytest.raises(Problem) as refused:
        store.group("train:3")
    assert refused.value.status_code == 404


@pytest.mark.parametrize("part", ["end", "middle", "all"])
def test_a_damaged_file_is_named_and_the_others_are_shown(store: Store, part: str) -> None:
    bad, good = write_samples(store.folder, a_sample(0), a_sample(1, a_response()))
    content = bad.read_bytes()
    half = len(content) // 2
    torn = {"end": content[:half], "middle": content[:9] + b"\xff" * half + content[9 + half :]}
    bad.write_bytes(torn.get(part, b""))
    shown = keys(store)
    assert "1.train:1/0" in shown
    with pytest.raises(Problem) as refused:
        store.group("train:0")
    assert (refused.value.status_code, refused.value.code) == (404, "damaged")
    assert bad.name in str(refused.value)
    if len(shown) == 1:
        assert [bad.name in words for words in store.look()["damaged"]] == [True]
    bad.unlink()
    assert store.look()["damaged"] == []
    assert store.group("train:1")[0]["index"] == 0
    assert good.exists()


def test_queries_read_the_folder_of_the_job_alone(store: Store, tmp_path: Path) -> None:
    (other,) = write_samples(tmp_path / "other", a_sample(0))
    for query in (f"FROM read_parquet('{other}')", f"COPY (SELECT 1) TO '{tmp_path}/out.csv'"):
        with pytest.raises(duckdb.PermissionException):
            store._database.execute(query)
    hostile = "x' OR 1=1; DROP TABLE samples --"
    write_samples(store.folder, a_sample(0, a_response()))
    store.look()
    for name in ("task", "key", "fate"):
        wanted = SampleFilter.model_validate({name: hostile})
        assert store.select(wanted, Order.OLDEST, None, 10) == []
    assert keys(store) == ["1.train:0/0"]
