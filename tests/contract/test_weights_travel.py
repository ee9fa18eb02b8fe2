"""Weights travel from the learner's memory to rollouts beside it and on other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from protocol import weights
from protocol.exchange import Exchange
from protocol.messages import PolicyVersion
from protocol.weights import WeightsError

from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import copy_published
from services.learner.durable.publish import Publisher
from services.rollout.fetching import Fetcher
from tests.builders import a_job_record, a_recipe
from tests.contract.fake_team import FakeTeam

if TYPE_CHECKING:  # which imports torch
    from services.learner.training.ranks import Team

FILE = "model.safetensors"
WORDS = 100_000


class SparseTeam(FakeTeam):
    """A step changes one word in a thousand; versions are written over what is in the slot."""

    def __init__(self) -> None:
        super().__init__()
        self.words = np.zeros(WORDS, dtype=np.uint16)

    async def publish(self, folder: Path, slot: int) -> None:
        file = folder / FILE
        with file.open("r+b" if file.exists() else "wb") as opened:
            opened.write(self.words.tobytes())
        self.words[:: 1000 + slot] += 1


class Line:
    """A learner that publishes, and the machines that see its disk."""

    def __init__(self, exchange: Exchange, folder: Path, team: FakeTeam) -> None:
        self.exchange = exchange
        self.folder = folder
        self.team = team
        self.disk = folder / "disk"

    async def begin(self, *, by_delta: bool = True) -> None:
        number = await self.exchange.begin_attempt("job")
        attempt = Attempt(self.exchange, "job", number, a_recipe(), self.folder)
        memory = self.folder / "learner" if by_delta else self.disk
        self.publisher = Publisher(attempt, self.disk, memory, by_delta=by_delta)

    async def publish(self, number: int) -> PolicyVersion:
        await self.publisher.publish(cast("Team", self.team), number)
        newest = await self.newest()
        assert newest.number == number
        return newest

    async def newest(self) -> PolicyVersion:
        """When it is announced."""
        await self.publisher.wait_announced()
        newest = await self.exchange.newest_policy("job")
        assert newest is not None
        assert newest == self.publisher.newest
        return newest

    @property
    def evaluated(self) -> PolicyVersion:
        assert self.publisher.evaluated is not None
        return self.publisher.evaluated

    def verify(self, policy: PolicyVersion) -> Path:
        """The folder of a version that is whole in the learner's memory."""
        folder = self.publisher.memory_folder(policy)
        weights.verify(folder, policy.digest)
        return folder

    def fetcher(self, machine: str = "elsewhere") -> Fetcher:
        return Fetcher(self.disk, self.folder / machine)


def verify(fetcher: Fetcher, policy: PolicyVersion) -> Path:
    with fetcher.fetched(policy) as folder:
        weights.verify(folder, policy.digest)
    return folder


@pytest.fixture
async def line(exchange: Exchange, tmp_path: Path) -> Line:
    await exchange.submit(a_job_record())
    line = Line(exchange, tmp_path, SparseTeam())
    await line.begin()
    return line


async def test_every_machine_gets_every_version(line: Line) -> None:
    beside, elsewhere = line.fetcher("learner"), line.fetcher()
    policy = await line.publish(0)
    for number in range(1, 4):
        assert verify(beside, policy) == line.folder / "learner" / policy.folder
        assert verify(elsewhere, policy).parent == line.folder / "elsewhere"
        policy = await line.publish(number)
    verify(line.fetcher("late"), policy)
    assert policy.links == tuple(f"job/1.{number}.link" for number in range(4))
    wholes = [(line.disk / link / FILE).exists() for link in policy.links]
    assert wholes == [True, False, False, False]  # whole first, then what has changed


async def test_the_chain_begins_anew_before_it_is_longer_than_a_version(line: Line) -> None:
    assert isinstance(line.team, SparseTeam)
    follower, lengths = line.fetcher(), list[int]()
    policy = await line.publish(0)
    for number in range(1, 12):
        verify(follower, policy)
        lengths.append(len(policy.links))
        line.team.words[::10] += 1  # a change takes a fifth of a version
        policy = await line.publish(number)
    assert max(lengths) == 5
    assert lengths.count(1) == 3  # of eleven
    names = {path.name for path in (line.disk / "job").iterdir()}
    assert names == {Path(link).name for link in policy.links}


async def test_a_copy_is_made_anew_when_it_is_damaged_or_an_attempt_begins(line: Line) -> None:
    follower = line.fetcher()
    copy = verify(follower, await line.publish(0))
    policy = await line.publish(1)
    (copy / FILE).write_bytes(b"x" * 2 * WORDS)
    with pytest.raises(WeightsError, match="damaged"):
        verify(follower, policy)
    verify(follower, policy)
    assert (line.disk / policy.links[0]).exists()  # it was the copy alone
    (copy / "another.safetensors").write_text("of a version of more ranks, and so of more files")
    await line.begin()
    assert verify(follower, await line.publish(0)) == copy
    assert [path.name for path in copy.glob("*.safetensors")] == [FILE]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink])
@pytest.mark.parametrize("name", [f"2.link/{FILE}.delta", f"0.link/{FILE}", "3.link/manifest.json"])
async def test_links_that_are_damaged_are_written_again_while_the_learner_waits(
    line: Line, name: str, damage: Callable[[Path], None]
) -> None:
    ahead, late = line.fetcher("ahead"), line.fetcher("late")
    for number in range(4):
        verify(ahead, await line.publish(number))
        if number == 1:
            await line.publisher.evaluate()
    damage(line.disk / f"job/1.{name}")
    with pytest.raises(WeightsError):
        verify(late, await line.newest())
    line.publisher.repair()
    mended = await line.newest()
    assert mended.evaluated is not None
    assert (mended.links, mended.evaluated.links) == (("job/1.3.link",), ("job/1.1.link",))
    verify(line.fetcher("later"), mended.evaluated)
    for policy in (mended, await line.publish(4)):
        for fetcher in (late, ahead):
            verify(fetcher, policy)


async def test_a_machine_that_spoils_every_copy_is_not_heard_for_ever(line: Line) -> None:
    spoiled = line.fetcher()
    policy = await line.publish(0)
    for is_heard in (True, True, True, False):
        with pytest.raises(WeightsError), spoiled.fetched(policy):
            raise WeightsError("its memory is broken")
        assert (line.disk / policy.links[0]).exists() is not is_heard
        line.publisher.repair()
        await line.publisher.wait_announced()


async def test_the_copy_of_a_rollout_that_was_killed_goes(line: Line) -> None:
    policy = await line.publish(0)
    memory = line.folder / "elsewhere"
    leftover = memory / ".copy-of-who-was-killed"
    leftover.mkdir(parents=True)
    followers = [line.fetcher(), line.fetcher()]
    copies = {verify(follower, policy) for follower in followers}
    assert set(memory.iterdir()) == copies
    assert len(copies) == 2
    followers[0].close()
    assert len(list(memory.iterdir())) == 1


async def test_what_is_evaluated_or_in_a_checkpoint_stays_while_others_are_published(
    line: Line,
) -> None:
    folder = line.verify(await line.publish(0))
    expected = (folder / FILE).read_bytes()
    saved = line.folder / "checkpoint"
    copy_published(folder, saved)
    await line.publisher.evaluate()
    evaluated = line.evaluated
    for number in range(1, 5):
        await line.publish(number)
    line.verify(evaluated)
    assert (await line.newest()).evaluated == evaluated
    await line.publisher.end_evaluation()
    for number in range(5, 7):
        await line.publish(number)
    assert not line.publisher.memory_folder(evaluated).exists()
    assert (saved / FILE).read_bytes() == expected


async def test_an_evaluated_version_that_is_restored_and_published_is_one_and_the_same(
    line: Line,
) -> None:
    source = line.folder / "evaluated"
    source.mkdir()
    (source / FILE).write_bytes(b"evaluated" * WORDS)
    await line.publisher.restore_evaluated(cast("Team", line.team), 3, source)
    evaluated = line.evaluated
    assert (await line.publish(3)).digest == evaluated.digest
    follower = line.fetcher()
    for number in range(4, 7):
        verify(follower, await line.publish(number))
        line.verify(evaluated)
    await line.publisher.restore_evaluated(cast("Team", line.team), 6, source)
    newest = await line.newest()
    assert newest.evaluated == newest.model_copy(update={"evaluated": None})
    line.verify(newest)


BASE = b"w" * 100_000


async def test_adapters_travel_alone_behind_the_model_that_they_are_for(
    exchange: Exchange, tmp_path: Path
) -> None:
    # A model as a hub's cache holds it: its files are links. It has a manifest of its own, too.
    model, team = tmp_path / "model", FakeTeam()
    model.mkdir()
    (tmp_path / "blob").write_bytes(BASE)
    (model / FILE).symlink_to(tmp_path / "blob")
    (model / "config.json").write_text("{}")
    for name in ("manifest.json", "pytorch_model.bin"):
        (model / name).write_text("of another program")
    team.adapts = model
    await exchange.submit(a_job_record())
    line = Line(exchange, tmp_path, team)
    first, second = [await _publish_adapters(line, attempt) for attempt in (1, 2)]
    base = line.disk / second.base
    weights.verify(base, second.base_digest)
    assert (base / FILE).read_bytes() == BASE
    assert not any(path.is_symlink() or path.suffix == ".bin" for path in base.iterdir())
    sizes = [path.stat().st_size for path in (line.disk / second.folder).iterdir()]
    assert sum(sizes) < 0.05 * len(BASE)
    # An engine goes on with the base that it has.
    assert first.base_digest == second.base_digest
    assert (model / "manifest.json").read_text() == "of another program"


async def _publish_adapters(line: Line, attempt: int) -> PolicyVersion:
    await line.begin(by_delta=False)
    for number in range(4):
        await line.publish(number)
    names = {path.name for path in (line.disk / "job").iterdir()}
    assert names == {f"{attempt}.base", f"{attempt}.2", f"{attempt}.3"}
    return await line.newest()
