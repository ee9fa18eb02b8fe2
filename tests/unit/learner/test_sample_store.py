"""The sample store on disk: in order, in segments that come and go, whole after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from protocol.messages import GradedGroup
from protocol.recipe import Purpose
from protocol.samples import SampledGroup, read_facts

from services.chassis.deployment import Deployment
from services.learner.durable import sample_store
from services.learner.durable.sample_facts import sampled_groups
from services.learner.durable.sample_store import SampleStore, remove_old
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import a_recipe
from tests.kept_samples import all_samples, fates

SCORING = Scoring.of(a_recipe())
DAY_S = 86_400


def deployment(folder: Path, most: int = 10**9, days: float = 7) -> Deployment:
    needed = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": str(folder), "WEIR_PORT": "0"}
    of_environment = Deployment.from_environment(needed)
    return replace(of_environment, keep_samples_bytes=most, keep_samples_days=days)


def a_store(folder: Path, attempt: int = 1, most: int = 10**9) -> SampleStore:
    return SampleStore(folder, attempt, deployment(folder, most))


def groups(*numbers: int, fate: str = "deaths") -> Iterator[SampledGroup]:
    failed = [GradedGroup(purpose=Purpose.TRAIN, number=n, failure="deaths: two") for n in numbers]
    scored = [ScoredGroup(group, SCORING) for group in failed]
    for group in scored:
        group.fate = fate
    return sampled_groups(scored, {}, attempt=1, step=0)


def write(store: SampleStore, *numbers: int, fate: str = "deaths") -> None:
    asyncio.run(append_and_sync(store, *numbers, fate=fate))


async def append_and_sync(store: SampleStore, *numbers: int, fate: str = "deaths") -> None:
    for number in numbers:
        await store.append(groups(number, fate=fate))
    await store.sync()


def numbers_in(folder: Path) -> list[int]:
    return [facts.number for facts, _ in all_samples(folder)]


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.samples"))


@pytest.fixture
def record_bytes(tmp_path: Path) -> int:
    folder = tmp_path / "one"
    write(a_store(folder), 0)
    return (folder / segments(folder)[0]).stat().st_size


def test_groups_are_read_in_the_order_in_which_they_were_appended(tmp_path: Path) -> None:
    write(a_store(tmp_path), *range(20))
    write(a_store(tmp_path), 20)  # whose number was given before
    assert numbers_in(tmp_path) == list(range(21))
    assert segments(tmp_path) == ["000001-000000.samples", "000001-000001.samples"]


def test_what_a_later_attempt_writes_counts(tmp_path: Path) -> None:
    write(a_store(tmp_path, attempt=9), 1, 2, fate="surplus")
    write(a_store(tmp_path, attempt=10), 2, 3)
    assert numbers_in(tmp_path) == [1, 2, 2, 3]
    assert fates(tmp_path, Purpose.TRAIN) == {1: "surplus", 2: "deaths", 3: "deaths"}


def test_the_oldest_segments_go_when_all_are_too_large(tmp_path: Path, record_bytes: int) -> None:
    folder, most = tmp_path / "store", 40 * record_bytes
    for attempt in (1, 2):
        write(a_store(folder, attempt, most), *range(100 * attempt, 100 * attempt + 50))
        assert sum(path.stat().st_size for path in folder.iterdir()) <= most
        kept = numbers_in(folder)
        assert kept == list(range(kept[0], 100 * attempt + 50))
        assert len(kept) >= 20


def test_a_segment_is_full_at_its_size(
    tmp_path: Path, record_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_store, "_SEGMENT_BYTES", record_bytes * 3 // 2)
    write(a_store(tmp_path / "store"), 0, 1, 2, 3, 4)
    assert segments(tmp_path / "store") == [f"000001-00000{n}.samples" for n in range(3)]
    assert numbers_in(tmp_path / "store") == [0, 1, 2, 3, 4]


def test_with_no_bytes_nothing_is_written_and_what_was_there_goes(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizer.json").write_text("{}")
    write(a_store(tmp_path / "store"), 1)
    nothing = a_store(tmp_path / "store", attempt=2, most=0)
    nothing.keep_tokenizer(tmp_path / "model")
    write(nothing, 2)
    assert list((tmp_path / "store").iterdir()) == []


def test_old_segments_of_all_jobs_go(tmp_path: Path) -> None:
    settings = deployment(tmp_path, days=2)
    old = time.time() - 3 * DAY_S
    for job in ("one", "two"):
        for attempt in (1, 2):
            write(SampleStore(settings.job_dir(job) / "samples", attempt, settings), attempt)
        os.utime(settings.job_dir(job) / "samples/000001-000000.samples", (old, old))
    remove_old(replace(settings, keep_samples_days=4))
    assert numbers_in(settings.job_dir("one") / "samples") == [1, 2]
    remove_old(settings)
    for job in ("one", "two"):
        assert numbers_in(settings.job_dir(job) / "samples") == [2]
    write(a_store(tmp_path), 1)
    os.utime(tmp_path / "000001-000000.samples", (old, old))
    write(SampleStore(tmp_path, 2, settings), 2)  # at a checkpoint
    assert numbers_in(tmp_path) == [2]


def test_a_torn_end_is_left_out_and_a_later_attempt_goes_on(tmp_path: Path) -> None:
    write(a_store(tmp_path), 1, 2)
    segment = tmp_path / "000001-000000.samples"
    content = segment.read_bytes()
    for end in range(len(content) // 2 + 1, len(content), 7):
        found = [facts.number for _, facts in read_facts(BytesIO(content[:end]))]
        assert found == [1]
    segment.write_bytes(content[:-5])
    write(a_store(tmp_path, attempt=2), 2, 3)
    assert numbers_in(tmp_path) == [1, 2, 3]


def test_what_could_not_be_written_is_told_at_the_next_step_or_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sample_store, "pack_sample", full)

    async def append_twice(store: SampleStore) -> None:
        for number in (1, 2):
            await store.append(groups(number))

    for told in (append_twice(a_store(tmp_path)), append_and_sync(a_store(tmp_path, 2), 1)):
        with pytest.raises(OSError, match="Errno 28"):
            asyncio.run(told)


def test_the_tokenizer_of_the_model_lies_beside_the_segments(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    store = a_store(tmp_path / "store")
    store.keep_tokenizer(tmp_path / "model")
    assert list(store.folder.iterdir()) == []
    for text in ("{}", '{"newer": 1}'):
        (tmp_path / "model/tokenizer.json").write_text(text)
        store.keep_tokenizer(tmp_path / "model")
        assert [path.read_text() for path in store.folder.iterdir()] == [text]
