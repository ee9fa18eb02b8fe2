"""The samples of a client's data show its values, and null for everything else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.operations import Data, Operation
from protocol.samples import TOKENIZER

from services.gateway.api.samples import SampleQuery, page_json
from services.gateway.core.samples.group import group_json
from services.gateway.core.samples.store import Store
from services.learner.durable.sample_rows import write_groups
from services.learner.durable.trained_rows import build_data_rows, datum_rows
from services.learner.replay import CannotReplay, read_step
from tests.architecture.project import ROOT
from tests.unit.grader.pools import InlinePool

POOL: Any = InlinePool()
MODEL = ROOT / "examples/arithmetic/base-model"
UNKNOWN = ("accuracy", "process", "reward", "parity_gap", "truncated")
# Each row is a datum: trained except for a tool's token; only sampled; two advantages; no loss.
WEIGHTS = np.array(
    [
        [0, 2, 0, 2],
        [0, 0, 0, 0],
        [0, 0, 3, -1],
        [0, 0, 0, 0],
    ],
    np.float32,
)
BEHAVIOR = np.array(
    [
        [0, -1, 0, -3],
        [0, -1, -1, -1],
        [0, 0, -1, 0],
        [0, 0, 0, 0],
    ],
    np.float32,
)


def a_store(folder: Path, loss: Any) -> Store:
    behavior = BEHAVIOR if loss != "cross_entropy" else 0 * BEHAVIOR
    data = Data(
        lengths=np.array([4, 4, 4, 4]),
        input_ids=np.tile([5, 6, 7, 8], 4),
        targets=np.tile([6, 7, 8, 9], 4),
        weights=WEIGHTS.ravel(),
        behavior_logprobs=behavior.ravel(),
    )
    operation = Operation(
        number=1,
        do="forward_backward",
        loss=loss,
        data=data,
    )
    rows = [*datum_rows(operation, np.full(16, -0.5, np.float32))]
    texts = [[f"{row[name].tolist()}" for name in ("prompt_ids", "token_ids")] for row in rows]
    groups = build_data_rows(
        rows,
        texts,
        attempt=1,
        step=7,
        created_at=1.0,
    )
    write_groups(folder / "000007-train-000001.parquet", groups)
    (folder / TOKENIZER).write_bytes((MODEL / TOKENIZER).read_bytes())
    return Store(folder)


def list_rows(store: Store, **query: Any) -> list[dict[str, Any]]:
    return json.loads(page_json(store, SampleQuery(**query)))["data"]


def columns(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_a_policy_loss_shows_its_advantages_and_the_samplers_log_probs(tmp_path: Path) -> None:
    store = a_store(tmp_path, "ppo")
    rows = list_rows(store, order="oldest")
    assert columns(rows, "id", "prompt", "text", "advantage", "surprise", "length") == [
        ("train:1792/0", "[5, 6]", "[7, 8, 9]", 2.0, 2.0, 2),
        ("train:1792/1", "[5, 6]", "[7, 8, 9]", 0.0, 1.0, 3),
        ("train:1793/0", "[5, 6, 7]", "[8, 9]", 1.0, 0.5, 2),
        ("train:1794/0", "[5]", "[6, 7, 8, 9]", None, None, 0),
    ]
    first, second = json.loads(asyncio.run(group_json(store, "train:1792", POOL)))["responses"]
    assert first["token_advantages"] == [2.0, None, 2.0]
    assert first["behavior_logprobs"] == [-1.0, None, -3.0]
    assert first["logprobs"] == [-0.5, None, -0.5]
    assert second["token_advantages"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("loss", ["cross_entropy", "cispo"])
def test_an_unknown_value_is_null_and_no_filter_finds_it(tmp_path: Path, loss: str) -> None:
    store = a_store(tmp_path, loss)
    rows = list_rows(store)
    assert columns(rows, *UNKNOWN, "graded") == [(*[None] * len(UNKNOWN), False)] * 4
    for order in ("rewarded", "wrong"):
        assert not list_rows(store, order=order)
    for name in ("ungradable", "correct", "truncated"):
        for value in (True, False):
            assert not list_rows(store, **{name: value})
    group = json.loads(asyncio.run(group_json(store, rows[0]["key"], POOL)))
    assert {response["grade"] for response in group["responses"]} == {None}
    with pytest.raises(CannotReplay, match="no grade"):
        read_step(tmp_path, 7)


def test_supervised_data_has_no_advantages(tmp_path: Path) -> None:
    rows = list_rows(
        a_store(tmp_path, "cross_entropy"),
        order="oldest",
    )
    assert columns(rows, "advantage", "surprise", "text", "length") == [
        (None, None, "[7, 8, 9]", 2),
        (None, None, "[6, 7, 8, 9]", 0),
        (None, None, "[6, 7, 8, 9]", 0),
        (None, None, "[8, 9]", 2),
    ]
