"""The sample store on disk: a whole file for each step, and only the newest files stay."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from protocol.frames import encode
from protocol.recipe import Purpose
from protocol.samples import USED

from services.chassis.deployment import Deployment
from services.learner.durable import sample_store
from services.learner.durable.sample_rows import build_rows, parse_graded, read_groups, write_groups
from services.learner.durable.sample_store import SampleStore, remove_old
from services.learner.training.scoring import ScoredGroup
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_request,
    an_episodes_group,
)
from tests.kept_samples import all_samples
from tests.sample_stores import SCORING
from tests.unit.learner.groups import BROKEN, graded, grades


def a_store(folder: Path, attempt: int = 1, **settings: float) -> SampleStore:
    return SampleStore(folder, attempt, deployment(folder, **settings))


def deployment(folder: Path, **settings: float) -> Deployment:
    variables = {
        "WEIR_REDIS_URL": "redis://x",
        "WEIR_DATA_DIR": str(folder),
        "WEIR_PORT": "0",
    }
    limits = {"keep_samples_bytes": 10**9, "keep_samples_days": 7}
    return replace(Deployment.from_environment(variables), **limits | settings)


async def append(store: SampleStore, *steps: int, purpose: Purpose = Purpose.TRAIN) -> None:
    for step in steps:
        failure = ScoredGroup(a_failed_group(step), SCORING)
        await store.append(
            purpose,
            step,
            partial(build_rows, [failure], {}),
        )


def write(store: SampleStore, *steps: int, purpose: Purpose = Purpose.TRAIN) -> None:
    async def append_and_sync() -> None:
        await append(store, *steps, purpose=purpose)
        await store.sync()

    asyncio.run(append_and_sync())


def stored_steps(folder: Path) -> list[tuple[int, int]]:
    """Return each step with its attempt."""
    return [(rows[0]["step"], rows[0]["attempt"]) for rows in all_samples(folder)]


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_group_is_read_as_it_was_written(tmp_path: Path) -> None:
    policy_mask = np.array([1, 0, 1, 0, 1])
    pair = a_request(number=5, group_size=2)
    groups = [
        graded(1, 0, lengths=[3, 0], number=3),
        a_failed_group(4),
        a_graded_group(
            a_group(
                pair,
                [3, 2],
                own=policy_mask,
                begins_thinking=True,
            ),
            [1, 0],
        ),
        a_graded_group(
            an_episodes_group(None, 0.5, number=6),
            grades=grades([BROKEN, BROKEN]),
        ),
    ]
    scored = [ScoredGroup(group, SCORING) for group in groups]
    tokens = {
        "logprobs": np.array(
            [-1.0, np.nan, -3.0, -4, -5, -6],
            dtype=np.float32,
        )
    }
    rows = build_rows(
        scored,
        tokens,
        attempt=1,
        step=2,
        created_at=0.5,
    )
    write_groups(tmp_path / "step.parquet", rows, batch_tokens=1)
    stored = read_groups(tmp_path / "step.parquet")
    assert [encode(parse_graded(rows)) for rows in stored] == [encode(group) for group in groups]
    assert stored[0][0]["logprobs"] == pytest.approx([-1.0, np.nan, -3.0], nan_ok=True)
    assert stored[2][0]["logprobs"] == pytest.approx([-4.0, np.nan, -5.0], nan_ok=True)
    assert stored[0][0]["fate"] == USED
    assert (stored[1][0]["fate"], stored[1][0]["text"]) == ("deaths", None)


def test_a_step_has_a_file_and_an_attempt_that_makes_it_again_cuts_what_followed(
    tmp_path: Path,
) -> None:
    write(a_store(tmp_path, attempt=9), *range(4))
    write(
        a_store(tmp_path, attempt=9),
        2,
        purpose=Purpose.EVAL,
    )
    write(a_store(tmp_path, attempt=10), 1)
    assert file_names(tmp_path) == [
        "000000-train-000009.parquet",
        "000001-train-000010.parquet",
        "000002-eval-000009.parquet",
    ]
    write(a_store(tmp_path, attempt=9), 3)  # by a superseded learner
    assert stored_steps(tmp_path) == [(0, 9), (1, 10), (2, 9)]
    write(a_store(tmp_path, attempt=10), 2)
    assert stored_steps(tmp_path) == [(0, 9), (1, 10), (2, 9), (2, 10)]
    assert len(file_names(tmp_path)) == 4


def test_an_unfinished_file_of_an_earlier_attempt_is_deleted(tmp_path: Path) -> None:
    for name in (".unfinished-1", ".unfinished-3"):
        (tmp_path / name).write_bytes(b"half")
    write(a_store(tmp_path, attempt=2), 0)
    assert file_names(tmp_path) == [".unfinished-3", "000000-train-000002.parquet"]


def test_the_oldest_steps_are_deleted_if_all_are_too_large(tmp_path: Path) -> None:
    write(a_store(tmp_path / "one"), 0)
    (size,) = (path.stat().st_size for path in (tmp_path / "one").iterdir())
    folder = tmp_path / "store"
    limit = int(10.5 * size)
    for attempt, last in ((1, 20), (2, 40)):
        write(
            a_store(folder, attempt, keep_samples_bytes=limit),
            *range(last),
        )
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limit
        steps = [step for step, _ in stored_steps(folder)]
        assert steps == list(range(steps[0], last))
        assert len(steps) >= 9
    write(
        a_store(folder, 3, keep_samples_bytes=size // 2),
        50,
    )
    assert [step for step, _ in stored_steps(folder)] == [50]


def test_tokenizer_and_recipe_are_next_to_the_steps_and_with_no_bytes_nothing_is(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    store = a_store(tmp_path / "store")
    store.write_origin(model, a_recipe())
    assert file_names(store.folder) == ["recipe.json"]
    (model / "tokenizer.json").write_text("{}")
    store.write_origin(model, a_recipe())
    assert file_names(store.folder) == ["recipe.json", "tokenizer.json"]
    nothing = a_store(tmp_path / "nothing", keep_samples_bytes=0)
    write(a_store(nothing.folder), 1)
    nothing.write_origin(model, a_recipe())
    write(nothing, 2)
    assert file_names(nothing.folder) == []


def test_old_steps_of_all_jobs_are_deleted(tmp_path: Path) -> None:
    settings = deployment(tmp_path, keep_samples_days=2)
    folders = [settings.job_dir(job) / "samples" for job in ("one", "two")]
    old = time.time() - 3 * 86_400
    for folder in folders:
        write(SampleStore(folder, 1, settings), 0, 1)
        os.utime(folder / "000000-train-000001.parquet", (old, old))
    remove_old(replace(settings, keep_samples_days=4))
    assert stored_steps(folders[0]) == [(0, 1), (1, 1)]
    remove_old(settings)
    assert [stored_steps(folder) for folder in folders] == [[(1, 1)], [(1, 1)]]
    os.utime(
        folders[0] / "000001-train-000001.parquet",
        (old, old),
    )
    write(SampleStore(folders[0], 2, settings))  # a checkpoint
    assert stored_steps(folders[0]) == []


def test_a_failed_write_is_raised_at_the_next_step_or_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sample_store, "write_groups", full)

    with pytest.raises(OSError, match="Errno 28"):
        asyncio.run(append(a_store(tmp_path), 1, 2))
    with pytest.raises(OSError, match="Errno 28"):
        write(a_store(tmp_path, 2), 1)
    assert file_names(tmp_path) == []
