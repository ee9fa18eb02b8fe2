"""The sample store on disk: a file a step, whole or not at all, and the newest of them."""

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

import numpy as np
import pytest
from protocol.frames import encode
from protocol.messages import Grade, Ungradable
from protocol.recipe import Purpose
from protocol.samples import USED

from services.chassis.deployment import Deployment
from services.learner.durable import sample_store
from services.learner.durable.sample_rows import graded_of, read_groups, rows_of, write_groups
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


def deployment(folder: Path, most: int = 10**9, days: float = 7) -> Deployment:
    needed = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": str(folder), "WEIR_PORT": "0"}
    of_environment = Deployment.from_environment(needed)
    return replace(of_environment, keep_samples_bytes=most, keep_samples_days=days)


def a_store(folder: Path, attempt: int = 1, most: int = 10**9) -> SampleStore:
    return SampleStore(folder, attempt, deployment(folder, most))


def failed(number: int) -> ScoredGroup:
    group = a_failed_group(number, message="two")
    return ScoredGroup(group, SCORING)


def write(store: SampleStore, *steps: int, purpose: Purpose = Purpose.TRAIN) -> None:
    async def append_and_sync() -> None:
        for step in steps:
            await store.append(purpose, step, partial(rows_of, [failed(step)], {}))
        await store.sync()

    asyncio.run(append_and_sync())


def kept(folder: Path) -> list[tuple[int, int]]:
    """The attempt that each step is of."""
    heads = [rows[0] for rows in all_samples(folder)]
    return [(head["step"], head["attempt"]) for head in heads]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_group_is_read_as_it_was_written(tmp_path: Path) -> None:
    group = a_graded_group(a_group(a_request(number=3, group_size=2), [3, 0]), [1.0, 0.0])
    lost, own = failed(4).graded, np.array([1, 0, 1, 0, 1])
    turns = a_graded_group(
        a_group(a_request(number=5, group_size=2), [3, 2], own=own, begins_thinking=True),
        [1.0, 0.0],
    )
    grades = [Grade(outcome=Ungradable(reason="episode_failed"))] * 2
    broken = a_graded_group(an_episodes_group(None, 0.5, number=6), grades=grades)
    scored = [ScoredGroup(each, SCORING) for each in (group, lost, turns, broken)]
    tokens = {"logprobs": np.array([-1.0, np.nan, -3.0, -4, -5, -6], dtype=np.float32)}
    written = list(rows_of(scored, tokens, attempt=1, step=2, created_at=0.5))
    write_groups(tmp_path / "step.parquet", written, batch_tokens=1)
    read = read_groups(tmp_path / "step.parquet")
    again = [graded_of(rows) for rows in read]
    assert [encode(each) for each in again] == [encode(each.graded) for each in scored]
    assert read[0][0]["logprobs"] == pytest.approx([-1.0, np.nan, -3.0], nan_ok=True)
    assert read[2][0]["logprobs"] == pytest.approx([-4.0, np.nan, -5.0], nan_ok=True)
    assert (read[0][0]["fate"], read[1][0]["fate"], read[1][0]["text"]) == (USED, "deaths", None)


def test_a_step_has_a_file_and_an_attempt_that_makes_it_again_cuts_what_followed(
    tmp_path: Path,
) -> None:
    write(a_store(tmp_path, attempt=9), *range(4))
    write(a_store(tmp_path, attempt=9), 2, purpose=Purpose.EVAL)
    write(a_store(tmp_path, attempt=10), 1)
    assert files(tmp_path) == [
        "000000-train-000009.parquet",
        "000001-train-000010.parquet",
        "000002-eval-000009.parquet",
    ]
    write(a_store(tmp_path, attempt=9), 3)  # by a learner that does not know it is superseded
    assert kept(tmp_path) == [(0, 9), (1, 10), (2, 9)]
    write(a_store(tmp_path, attempt=10), 2)
    assert kept(tmp_path) == [(0, 9), (1, 10), (2, 9), (2, 10)]
    assert len(files(tmp_path)) == 4


def test_what_an_attempt_left_unfinished_is_no_step_and_goes(tmp_path: Path) -> None:
    for name in (".unfinished-1", ".unfinished-3"):
        (tmp_path / name).write_bytes(b"half")
    write(a_store(tmp_path, attempt=2), 0)
    assert files(tmp_path) == [".unfinished-3", "000000-train-000002.parquet"]


def test_the_oldest_steps_go_when_all_are_too_large(tmp_path: Path) -> None:
    write(a_store(tmp_path / "one"), 0)
    (one,) = (path.stat().st_size for path in (tmp_path / "one").iterdir())
    folder, most = tmp_path / "store", int(10.5 * one)
    for attempt, last in ((1, 20), (2, 40)):
        write(a_store(folder, attempt, most), *range(last))
        assert sum(path.stat().st_size for path in folder.iterdir()) <= most
        steps = [step for step, _ in kept(folder)]
        assert steps == list(range(steps[0], last))
        assert len(steps) >= 9
    write(a_store(folder, 3, most=one // 2), 50)
    assert [step for step, _ in kept(folder)] == [50]


def test_with_no_bytes_nothing_is_written_and_what_was_there_goes(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizer.json").write_text("{}")
    write(a_store(tmp_path / "store"), 1)
    nothing = a_store(tmp_path / "store", attempt=2, most=0)
    nothing.keep_origin(tmp_path / "model", a_recipe())
    write(nothing, 2)
    assert files(tmp_path / "store") == []


def test_old_steps_of_all_jobs_go(tmp_path: Path) -> None:
    settings = deployment(tmp_path, days=2)
    old = time.time() - 3 * DAY_S
    for job in ("one", "two"):
        folder = settings.job_dir(job) / "samples"
        write(SampleStore(folder, 1, settings), 0, 1)
        os.utime(folder / "000000-train-000001.parquet", (old, old))
    remove_old(replace(settings, keep_samples_days=4))
    assert [step for step, _ in kept(settings.job_dir("one") / "samples")] == [0, 1]
    remove_old(settings)
    for job in ("one", "two"):
        assert [step for step, _ in kept(settings.job_dir(job) / "samples")] == [1]
    write(a_store(tmp_path / "store"), 1)
    os.utime(tmp_path / "store/000001-train-000001.parquet", (old, old))
    write(SampleStore(tmp_path / "store", 2, settings))  # a checkpoint
    assert kept(tmp_path / "store") == []


def test_what_could_not_be_written_is_told_at_the_next_step_or_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sample_store, "write_groups", full)

    async def append_twice() -> None:
        store = a_store(tmp_path)
        for step in (1, 2):
            await store.append(Purpose.TRAIN, step, partial(rows_of, [failed(step)], {}))

    for tell in (lambda: asyncio.run(append_twice()), lambda: write(a_store(tmp_path, 2), 1)):
        with pytest.raises(OSError, match="Errno 28"):
            tell()
    assert files(tmp_path) == []


def test_the_tokenizer_of_the_model_and_the_recipe_lie_beside_the_steps(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    store = a_store(tmp_path / "store")
    store.keep_origin(tmp_path / "model", a_recipe())
    assert files(store.folder) == ["recipe.json"]
    (tmp_path / "model/tokenizer.json").write_text("{}")
    store.keep_origin(tmp_path / "model", a_recipe())
    assert files(store.folder) == ["recipe.json", "tokenizer.json"]


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
    found = eval(line.replace("JOB", "ftjob-1"), {"pandas": pandas, "glob": glob})
    assert found["number"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found["text"].tolist() == ["response 0", "response 1"] * 3
