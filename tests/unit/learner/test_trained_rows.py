"""What people see of a client's data: what it says, and nothing that it does not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.operations import Data, Operation
from protocol.samples import TOKENIZER
from tokenizers import Tokenizer

from services.gateway.api.samples import SampleQuery, page_json
from services.gateway.core.samples.group import group_json
from services.gateway.core.samples.store import Store
from services.learner.durable.sample_rows import write_groups
from services.learner.durable.trained_rows import data_rows, rows_of_data
from services.learner.replay import CannotReplay, read_step
from tests.architecture.project import ROOT
from tests.unit.grader.pools import InlinePool

POOL: Any = InlinePool()
MODEL = ROOT / "examples/arithmetic/base-model"
UNKNOWN = ("accuracy", "process", "reward", "parity_gap", "truncated")
# Targets that are: learned but for one of a tool; only sampled; worth different things; nothing.
WEIGHTS = np.array([[0, 2, 0, 2], [0, 0, 0, 0], [0, 0, 3, -1], [0, 0, 0, 0]], np.float32)
BEHAVIOR = np.array([[0, -1, 0, -3], [0, -1, -1, -1], [0, 0, -1, 0], [0, 0, 0, 0]], np.float32)


def a_store(folder: Path, loss: Any) -> Store:
    data = Data(
        lengths=np.array([4, 4, 4, 4]),
        input_ids=np.tile([5, 6, 7, 8], 4),
        targets=np.tile([6, 7, 8, 9], 4),
        weights=WEIGHTS.ravel(),
        behavior_logprobs=(BEHAVIOR if loss != "cross_entropy" else 0 * BEHAVIOR).ravel(),
    )
    operation = Operation(number=1, do="forward_backward", loss=loss, data=data)
    rows = [*data_rows(operation, np.full(16, -0.5, np.float32))]
    ids = [[row["prompt_ids"].tolist(), row["token_ids"].tolist()] for row in rows]
    tokenizer = Tokenizer.from_file(str(MODEL / TOKENIZER))
    texts = [tokenizer.decode_batch(each) for each in ids]
    groups = rows_of_data(rows, texts, attempt=1, step=7, created_at=1.0)
    write_groups(folder / "000007-train-000001.parquet", groups)
    (folder / TOKENIZER).write_bytes((MODEL / TOKENIZER).read_bytes())
    return Store(folder)


def listed(store: Store, **query: Any) -> list[dict[str, Any]]:
    return json.loads(page_json(store, SampleQuery(**query)))["data"]


def test_of_a_policy_loss_the_advantages_and_what_the_sampler_said_are_shown(
    tmp_path: Path,
) -> None:
    store = a_store(tmp_path, "ppo")
    rows = listed(store, order="oldest")
    assert [row["id"] for row in rows] == [
        *("train:1792/0", "train:1792/1", "train:1793/0", "train:1794/0")
    ]
    assert [(row["prompt"], row["text"]) for row in rows] == [
        *(('"#', "$%&"), ('"#', "$%&"), ('"#$', "%&"), ('"', "#$%&"))
    ]
    assert [row["advantage"] for row in rows] == [2.0, 0.0, 1.0, None]
    assert [row["surprise"] for row in rows] == [2.0, 1.0, 0.5, None]
    assert [row["length"] for row in rows] == [2, 3, 2, 0]
    first, second = json.loads(asyncio.run(group_json(store, "train:1792", POOL)))["responses"]
    assert first["token_advantages"] == [2.0, None, 2.0]
    assert first["behavior_logprobs"] == [-1.0, None, -3.0]
    assert first["logprobs"] == [-0.5, None, -0.5]
    assert first["tokens"] == ["$", "%", "&"]
    assert second["token_advantages"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("loss", ["cross_entropy", "cispo"])
def test_what_is_unknown_is_absent_and_found_by_no_filter(tmp_path: Path, loss: str) -> None:
    store = a_store(tmp_path, loss)
    rows = listed(store)
    assert len(rows) == 4
    assert {row[name] for row in rows for name in UNKNOWN} == {None}
    assert not any(row["graded"] for row in rows)
    assert not listed(store, order="rewarded") + listed(store, order="wrong")
    for name in ("ungradable", "correct", "truncated"):
        assert not listed(store, **{name: True}) + listed(store, **{name: False})
    group = json.loads(asyncio.run(group_json(store, rows[0]["key"], POOL)))
    assert {response["grade"] for response in group["responses"]} == {None}
    with pytest.raises(CannotReplay, match="no grade"):
        read_step(tmp_path, 7)


def test_of_supervised_data_no_weight_passes_for_an_advantage(tmp_path: Path) -> None:
    rows = listed(a_store(tmp_path, "cross_entropy"), order="oldest")
    assert {row[name] for row in rows for name in ("advantage", "surprise")} == {None}
    assert [row["text"] for row in rows] == ["$%&", "#$%&", "#$%&", "%&"]
    assert [row["length"] for row in rows] == [2, 0, 0, 2]
