"""Queries on a sample store whose files come, go, and may be damaged."""

import json
import random
from ast import literal_eval
from pathlib import Path
from typing import Any

import duckdb
import pytest

from services.gateway.api import samples as routes
from services.gateway.api.samples import SampleQuery, page_json
from services.gateway.core.samples.store import Order, SampleFilter, Store
from services.learner.durable.sample_rows import Row
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.sample_stores import a_failed_sample, a_response, a_sample, write_samples
from tests.tables import read_rows, table
from tests.unit.gateway.refusing import refused

RIGHT = a_response()
WRONG = a_response(accuracy=0.0, reward=0.0, advantage=-0.5)
PARTLY = a_response(accuracy=0.5, advantage=0.0, truncated=True)
UNGRADABLE = a_response(accuracy=None, reward=None, advantage=None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "samples")


def page(store: Store, timeout_s: float = 60.0, **query: Any) -> dict[str, Any]:
    return json.loads(page_json(store, SampleQuery(**query), timeout_s))


def listed(store: Store, **query: Any) -> list[str]:
    return [sample["id"] for sample in page(store, **query)["data"]]


@pytest.fixture
def filled(store: Store) -> Store:
    write_samples(
        store.folder,
        a_sample(0, RIGHT, WRONG),
        a_sample(1, PARTLY, UNGRADABLE, task_id="other", fate="no_signal"),
        a_sample(0, RIGHT, purpose="eval", step=1),
        a_failed_sample(2),
    )
    return store


@table("""
    query                     | expected
    {}                        | train:0/0 train:0/1 train:1/0 train:1/1 eval:0/0 train:2
    {"step": 1}               | train:1/0 train:1/1 eval:0/0
    {"purpose": "eval"}       | eval:0/0
    {"task": "other"}         | train:1/0 train:1/1
    {"key": "train:2"}        | train:2
    {"fate": "deaths"}        | train:2
    {"correct": True}         | train:0/0 eval:0/0
    {"correct": False}        | train:0/1 train:1/0
    {"ungradable": True}      | train:1/1
    {"ungradable": False}     | train:0/0 train:0/1 train:1/0 eval:0/0
    {"truncated": True}       | train:1/0
    {"truncated": False}      | train:0/0 train:0/1 train:1/1 eval:0/0
    {"zero_advantage": True}  | train:1/0
    {"zero_advantage": False} | train:0/0 train:0/1 eval:0/0
    {"text": "RESPONSE 1"}    | train:0/1 train:1/1
""")
def test_a_filter_selects_its_samples_in_both_orders(
    filled: Store, query: dict[str, Any], expected: str
) -> None:
    oldest = listed(filled, order="oldest", **query)
    newest = listed(filled, **query)
    assert oldest == expected.split()
    assert [name.partition("/")[0] for name in newest] == [
        name.partition("/")[0] for name in reversed(oldest)
    ]


def test_a_list_shows_the_begin_of_prompt_and_answer(store: Store) -> None:
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    request = a_request(number=1, group_size=1, task=a_task(prompt=None, messages=turns))
    talk = a_graded_group(a_group(request, [2], texts=["x" * 300]))
    plain = a_sample(0, a_response(), texts=["It is 2."])
    write_samples(store.folder, plain, a_sample(1, a_response(), graded=talk), a_failed_sample(2))
    rows = page(store, order="oldest")["data"]
    texts_shown = [(row["prompt"], row["text"]) for row in rows]
    prompt = plain[0]["prompt"]
    assert texts_shown == [(prompt, "It is 2."), ("1+1?", "x" * 200), (None, None)]


NUMBERS = """
accuracy | reward | advantage | surprise | parity_gap
0        | 0      | 0.5       | 0.5      | None
0        | 0.5    | 0.5       | 0.2      | 0.3
1        | 1      | -0.1      | 0.1      | 0.1
1        | 1      | 0.9       | 0.3      | 0.2
1        | 1      | None      | 0.4      | 0.4
None     | None   | 0.5       | 0.6      | 0
"""


@table("""
    order      | indexes
    wrong      | [1, 0]
    rewarded   | [3, 2, 4, 1, 0]
    surprising | [5, 0, 4, 3, 1, 2]
    parity     | [4, 1, 3, 2, 5]
""")
def test_each_order_sorts_by_its_number(store: Store, order: str, indexes: list[int]) -> None:
    names, *rows = read_rows(NUMBERS)
    responses = [
        a_response(**dict(zip(names, map(literal_eval, row), strict=True))) for row in rows
    ]
    write_samples(store.folder, a_sample(0, *responses), a_failed_sample(1))
    assert listed(store, order=order) == [f"train:0/{index}" for index in indexes]


@pytest.mark.parametrize("order", Order)
def test_pages_miss_and_repeat_nothing_while_the_store_grows_and_shrinks(
    store: Store, order: Order
) -> None:
    draw = random.Random(order)

    def a_drawn(number: int) -> list[Row]:
        numbers = ("reward", "advantage", "surprise", "parity_gap")
        responses = [
            a_response(accuracy=0.0, **{name: draw.randrange(4) / 3 for name in numbers})
            for _ in range(3)
        ]
        return a_sample(number, *responses, step=1_000 + number // 2)

    files = write_samples(store.folder, *map(a_drawn, range(8, 24)))
    at_first = set(listed(store, limit=1000))
    ids: list[str] = []
    after = None
    has_more = True
    gone = set()
    while has_more:
        answer = page(store, order=order, after=after, limit=5)
        ids += [sample["id"] for sample in answer["data"]]
        assert len(ids) == len(set(ids))
        after = answer["last_id"]
        has_more = answer["has_more"]
        if len(ids) == 15:
            write_samples(store.folder, *map(a_drawn, (*range(4), *range(24, 28))))
            files[0].unlink()
            gone = {f"train:{number}/{index}" for number in (8, 9) for index in range(3)}
    assert gone
    assert set(ids) >= at_first - gone


def test_a_long_search_returns_pages_with_a_cursor(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "NUM_SEARCHED", 1)
    texts = ["hay", "hay", "the needle", "hay"]
    groups = [a_sample(number, RIGHT, texts=[text]) for number, text in enumerate(texts)]
    write_samples(store.folder, *groups)
    pages = []
    after = None
    has_more = True
    while has_more and len(pages) < 10:
        answer = page(store, -1.0, order="oldest", text="NEEDLE", after=after)
        pages.append([sample["id"] for sample in answer["data"]])
        after = answer["last_id"]
        has_more = answer["has_more"]
    assert pages == [[], [], ["train:2/0"], [], []]


@pytest.mark.parametrize("after", ["", "oldest,1,2,3,4", "newest,1,2,3", "newest,1,2,3,x"])
def test_a_cursor_of_another_list_is_refused_by_name(filled: Store, after: str) -> None:
    with refused(400, param="after"):
        page(filled, after=after)


def keys(store: Store) -> list[str]:
    store.refresh()
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
    assert store.refresh() == {
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
    monkeypatch.setattr(store, "_read", lambda names: taken_in.extend(names) or set())
    write_samples(store.folder, a_sample(1), a_sample(2))
    first.unlink()
    assert keys(store) == []
    assert taken_in == ["000001-train-000001.parquet", "000002-train-000001.parquet"]


def test_a_repeated_step_supersedes_later_steps_of_earlier_attempts(
    store: Store,
) -> None:
    for attempt, steps in ((1, range(4)), (10, range(2, 3)), (9, range(1, 4))):
        groups = [
            a_sample(n, a_response(), texts=[f"by {attempt}"], attempt=attempt) for n in steps
        ]
        write_samples(store.folder, *groups)
    write_samples(store.folder, a_sample(3, a_response(), purpose="eval"))
    assert keys(store) == ["1.train:0/0", "9.train:1/0", "10.train:2/0", "1.eval:3/0"]
    assert store.read_group("train:2")[0]["text"] == "by 10"
    with refused(404):
        store.read_group("train:3")


@pytest.mark.parametrize("part", ["end", "middle", "all"])
def test_a_damaged_file_is_named_and_the_others_are_shown(store: Store, part: str) -> None:
    bad, _ = write_samples(store.folder, a_sample(0), a_sample(1, a_response()))
    content = bad.read_bytes()
    half = len(content) // 2
    torn = {"end": content[:half], "middle": content[:9] + b"\xff" * half + content[9 + half :]}
    bad.write_bytes(torn.get(part, b""))
    visible = keys(store)
    assert "1.train:1/0" in visible
    with refused(404, "damaged", match=bad.name):
        store.read_group("train:0")
    if len(visible) == 1:
        (words,) = store.refresh()["damaged"]
        assert bad.name in words
    bad.unlink()
    assert store.refresh()["damaged"] == []
    assert store.read_group("train:1")[0]["index"] == 0


def test_queries_read_the_folder_of_the_job_alone(store: Store, tmp_path: Path) -> None:
    (other,) = write_samples(tmp_path / "other", a_sample(0))
    for query in (f"FROM read_parquet('{other}')", f"COPY (SELECT 1) TO '{tmp_path}/out.csv'"):
        with pytest.raises(duckdb.PermissionException):
            store._database.execute(query)
    hostile = "x' OR 1=1; DROP TABLE samples --"
    write_samples(store.folder, a_sample(0, a_response()))
    store.refresh()
    for name in ("task", "key", "fate"):
        sample_filter = SampleFilter.model_validate({name: hostile})
        assert store.select(sample_filter, Order.OLDEST, None, 10) == []
    assert keys(store) == ["1.train:0/0"]
