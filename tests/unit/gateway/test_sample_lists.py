from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from services.gateway.errors import Problem
from services.gateway.samples import routes
from services.gateway.samples.routes import SampleQuery, page_json
from services.gateway.samples.store import Order, Store
from services.learner.durable.sample_rows import Row
from tests.sample_stores import a_failed_sample, a_response, a_sample, write_samples

RIGHT, WRONG = a_response(), a_response(accuracy=0.0, reward=0.0, advantage=-0.5)
PARTLY = a_response(accuracy=0.5, advantage=0.0, truncated=True)
UNGRADABLE = a_response(accuracy=None, reward=None, advantage=None)


def page(job_dir: Path, patience_s: float = 60.0, **query: Any) -> dict[str, Any]:
    store = Store(job_dir / "samples")
    return json.loads(page_json(store, SampleQuery(**query), patience_s))


def listed(job_dir: Path, **query: Any) -> list[str]:
    return [sample["id"] for sample in page(job_dir, **query)["data"]]


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    write_samples(
        tmp_path / "samples",
        a_sample(0, RIGHT, WRONG),
        a_sample(1, PARTLY, UNGRADABLE, task_id="other", fate="no_signal"),
        a_sample(0, RIGHT, purpose="eval", step=1),
        a_failed_sample(2),
    )
    return tmp_path


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["train:0/0", "train:0/1", "train:1/0", "train:1/1", "eval:0/0", "train:2"]),
        ({"step": 1}, ["train:1/0", "train:1/1", "eval:0/0"]),
        ({"purpose": "eval"}, ["eval:0/0"]),
        ({"task": "other"}, ["train:1/0", "train:1/1"]),
        ({"key": "train:2"}, ["train:2"]),
        ({"fate": "deaths"}, ["train:2"]),
        ({"correct": True}, ["train:0/0", "eval:0/0"]),
        ({"correct": False}, ["train:0/1", "train:1/0"]),
        ({"ungradable": True}, ["train:1/1"]),
        ({"ungradable": False}, ["train:0/0", "train:0/1", "train:1/0", "eval:0/0"]),
        ({"truncated": True}, ["train:1/0"]),
        ({"truncated": False}, ["train:0/0", "train:0/1", "train:1/1", "eval:0/0"]),
        ({"zero_advantage": True}, ["train:1/0"]),
        ({"zero_advantage": False}, ["train:0/0", "train:0/1", "eval:0/0"]),
        ({"text": "RESPONSE 1"}, ["train:0/1", "train:1/1"]),
    ],
)
def test_filters_leave_what_they_say(
    job_dir: Path, query: dict[str, Any], expected: list[str]
) -> None:
    assert listed(job_dir, order="oldest", **query) == expected
    groups = [sample.partition("/")[0] for sample in expected]
    newest = [sample.partition("/")[0] for sample in listed(job_dir, **query)]
    assert newest == groups[::-1]


def test_each_order_puts_first_what_it_is_named_for(tmp_path: Path) -> None:
    write_samples(
        tmp_path / "samples",
        a_sample(
            0,
            a_response(accuracy=0.0, reward=0.0, surprise=0.5, parity_gap=None),
            a_response(accuracy=0.0, reward=0.5, surprise=0.2, parity_gap=0.3),
            a_response(reward=1.0, advantage=-0.1, surprise=0.1, parity_gap=0.1),
            a_response(reward=1.0, advantage=0.9, surprise=0.3, parity_gap=0.2),
            a_response(reward=1.0, advantage=None, surprise=0.4, parity_gap=0.4),
            a_response(accuracy=None, reward=None, surprise=0.6, parity_gap=0.0),
        ),
        a_failed_sample(1),
    )
    expected = {
        "wrong": [1, 0],
        "rewarded": [3, 2, 4, 1, 0],
        "surprising": [5, 0, 4, 3, 1, 2],
        "parity": [4, 1, 3, 2, 5],
    }
    for order, indexes in expected.items():
        assert listed(tmp_path, order=order) == [f"train:0/{index}" for index in indexes], order


@pytest.mark.parametrize("order", Order)
def test_pages_miss_and_repeat_nothing_while_the_store_grows_and_shrinks(
    tmp_path: Path, order: Order
) -> None:
    draw = random.Random(order)

    def a_drawn(number: int) -> list[Row]:
        numbers = ("reward", "advantage", "surprise", "parity_gap")
        responses = [
            a_response(accuracy=0.0, **{name: draw.randrange(4) / 3 for name in numbers})
            for _ in range(3)
        ]
        return a_sample(number, *responses, step=1_000 + number // 2)

    folder = tmp_path / "samples"
    files = write_samples(folder, *map(a_drawn, range(8, 24)))
    at_first = set(listed(tmp_path, limit=1000))
    seen: list[str] = []
    after, has_more, gone = None, True, set()
    while has_more:
        answer = page(tmp_path, order=order, after=after, limit=5)
        seen += [sample["id"] for sample in answer["data"]]
        assert len(seen) == len(set(seen))
        after, has_more = answer["last_id"], answer["has_more"]
        if len(seen) == 15:
            write_samples(folder, *map(a_drawn, (*range(4), *range(24, 28))))
            files[0].unlink()
            gone = {f"train:{number}/{index}" for number in (8, 9) for index in range(3)}
    assert gone
    assert set(seen) >= at_first - gone


def test_a_search_that_takes_long_answers_what_it_has_and_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_LOOKED_AT", 1)
    texts = ["hay", "hay", "the needle", "hay"]
    groups = [a_sample(number, RIGHT, texts=[text]) for number, text in enumerate(texts)]
    write_samples(tmp_path / "samples", *groups)
    found, after, has_more = [], None, True
    while has_more and len(found) < 10:
        answer = page(tmp_path, -1.0, order="oldest", text="NEEDLE", after=after)
        found.append([sample["id"] for sample in answer["data"]])
        after, has_more = answer["last_id"], answer["has_more"]
    assert found == [[], [], ["train:2/0"], [], []]


@pytest.mark.parametrize(
    "after",
    ["", "oldest,1,2,3,4", "newest,1,2,3", "newest,1,2,3,x"],
)
def test_a_cursor_of_another_list_is_refused_by_name(job_dir: Path, after: str) -> None:
    with pytest.raises(Problem) as refused:
        page(job_dir, after=after)
    assert (refused.value.status_code, refused.value.param) == (400, "after")
