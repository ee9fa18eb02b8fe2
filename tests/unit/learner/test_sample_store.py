"""The sample store on disk: a whole file for each step, and only the newest files stay."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from dataclasses import replace
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.frames import encode
from protocol.messages import Grade, GradedGroup, Ungradable
from protocol.recipe import Purpose
from protocol.samples import USED

from services.chassis.deployment import Deployment
from services.learner.durable import sample_store
from services.learner.durable.sample_rows import build_rows, parse_graded, read_groups, write_groups
from services.learner.durable.sample_store import SampleStore, remove_old
from services.learner.training.scoring import ScoredGroup
from tests.architecture.project import ROOT
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_request,
    an_episodes_group,
)
from tests.kept_samples import all_samples
from tests.sample_stores import SCORING, a_sample, write_samples

DAY_S = 86_400


def deployment(folder: Path, max_bytes: int = 10**9, days: float = 7) -> Deployment:
    variables = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": str(folder), "WEIR_PORT": "0"}
    return replace(
        Deployment.from_environment(variables),
        keep_samples_bytes=max_bytes,
        keep_samples_days=days,
    )


def a_store(folder: Path, attempt: int = 1, max_bytes: int = 10**9) -> SampleStore:
    return SampleStore(folder, attempt, deployment(folder, max_bytes))


def a_scored_failure(number: int) -> ScoredGroup:
    return ScoredGroup(a_failed_group(number, message="two"), SCORING)


async def append(store: SampleStore, *steps: int, purpose: Purpose = Purpose.TRAIN) -> None:
    for step in steps:
        await store.append(purpose, step, partial(build_rows, [a_scored_failure(step)], {}))


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
    def a_pair(number: int, lengths: list[int], **fields: Any) -> GradedGroup:
        request = a_request(number=number, group_size=2)
        return a_graded_group(a_group(request, lengths, **fields), [1.0, 0.0])

    policy_mask = np.array([1, 0, 1, 0, 1])
    grades = [Grade(outcome=Ungradable(reason="episode_failed"))] * 2
    groups = [
        a_pair(3, [3, 0]),
        a_failed_group(4),
        a_pair(5, [3, 2], own=policy_mask, begins_thinking=True),
        a_graded_group(an_episodes_group(None, 0.5, number=6), grades=grades),
    ]
    scored = [ScoredGroup(group, SCORING) for group in groups]
    tokens = {"logprobs": np.array([-1.0, np.nan, -3.0, -4, -5, -6], dtype=np.float32)}
    rows = build_rows(scored, tokens, attempt=1, step=2, created_at=0.5)
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
    write(a_store(tmp_path, attempt=9), 2, purpose=Purpose.EVAL)
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
        write(a_store(folder, attempt, limit), *range(last))
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limit
        steps = [step for step, _ in stored_steps(folder)]
        assert steps == list(range(steps[0], last))
        assert len(steps) >= 9
    write(a_store(folder, 3, max_bytes=size // 2), 50)
    assert [step for step, _ in stored_steps(folder)] == [50]


def test_with_no_bytes_nothing_is_written_and_old_files_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizer.json").write_text("{}")
    write(a_store(tmp_path / "store"), 1)
    nothing = a_store(tmp_path / "store", attempt=2, max_bytes=0)
    nothing.write_origin(tmp_path / "model", a_recipe())
    write(nothing, 2)
    assert file_names(tmp_path / "store") == []


def test_old_steps_of_all_jobs_are_deleted(tmp_path: Path) -> None:
    settings = deployment(tmp_path, days=2)
    old = time.time() - 3 * DAY_S
    for job in ("one", "two"):
        folder = settings.job_dir(job) / "samples"
        write(SampleStore(folder, 1, settings), 0, 1)
        os.utime(folder / "000000-train-000001.parquet", (old, old))
    remove_old(replace(settings, keep_samples_days=4))
    assert [step for step, _ in stored_steps(settings.job_dir("one") / "samples")] == [0, 1]
    remove_old(settings)
    for job in ("one", "two"):
        assert [step for step, _ in stored_steps(settings.job_dir(job) / "samples")] == [1]
    write(a_store(tmp_path / "store"), 1)
    os.utime(tmp_path / "store/000001-train-000001.parquet", (old, old))
    write(SampleStore(tmp_path / "store", 2, settings))  # a checkpoint
    assert stored_steps(tmp_path / "store") == []


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


def test_the_tokenizer_of_the_model_and_the_recipe_are_next_to_the_steps(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    store = a_store(tmp_path / "store")
    store.write_origin(tmp_path / "model", a_recipe())
    assert file_names(store.folder) == ["recipe.json"]
    (tmp_path / "model/tokenizer.json").write_text("{}")
    store.write_origin(tmp_path / "model", a_recipe())
    assert file_names(store.folder) == ["recipe.json", "tokenizer.json"]


def test_the_line_of_the_readme_opens_the_samples_with_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (ROOT / "services/learner/README.md").read_text()
    (line,) = re.findall(r"^pandas\..*$", readme, re.MULTILINE)
    folder = tmp_path / "jobs" / "ftjob-1" / "samples"
    write_samples(folder, a_sample(0), a_sample(1, step=0), a_sample(2))
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    pandas = pytest.importorskip("pandas")
    table = eval(line.replace("JOB", "ftjob-1"), {"pandas": pandas, "glob": glob})
    assert table["number"].tolist() == [0, 0, 1, 1, 2, 2]
    assert table["text"].tolist() == ["response 0", "response 1"] * 3
