"""A rollout follows the policy: requests wait for weights, and nothing is lost to a load."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import REGISTRY
from protocol import deltas, weights
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, PolicyVersion, Probes

from services.chassis.deployment import Deployment
from services.chassis.faults import StartupFailed
from services.chassis.parity import digest_prompts
from services.chassis.service import Service, StatusReporter
from services.chassis.turns import Turns
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import EngineError, LoadError
from tests.builders import a_job_record, a_recipe, a_request
from tests.contract.valkey_server import Server
from tests.inline_prompts import InlinePrompts
from tests.unit.rollout.test_policy_sync import write_folder

if TYPE_CHECKING:
    from services.rollout.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


class SlowEngine:
    """Stands in for the engine: a load takes until it is told to end."""

    has_died = False
    prompts = InlinePrompts()

    def __init__(self) -> None:
        self.loading = asyncio.Event()
        self.end_of_load: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleeps = False

    async def load(self, folder: Path, label: str, *, keep_kv: bool) -> dict[str, float]:
        self.loading.set()
        await self.end_of_load
        return {"load": 1.0}

    async def score(self, prompt: object, seconds: dict[str, float]) -> list[float]:
        return [-1.0]

    async def sleep(self) -> None:
        self.sleeps = True

    async def wake_up(self) -> None:
        self.sleeps = False


@dataclass
class Following:
    exchange: Exchange
    deployment: Deployment
    follower: PolicyFollower
    engine: SlowEngine
    task: asyncio.Task[None]


@pytest.fixture
async def line(server: Server, tmp_path: Path) -> AsyncIterator[Following]:
    """A follower that serves version 0, and is told of version 1."""
    engine = SlowEngine()

    async def start(*_: object) -> Engine:
        return cast("Engine", engine)

    deployment = Deployment.from_environment(
        {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path), "WEIR_PORT": "0"}
    )
    async with connect(server.url, me="rollout", patience_s=5) as exchange:
        await exchange.submit(a_job_record())
        await exchange.begin_attempt("job")
        await exchange.activate(ActiveJob(job_id="job", attempt=1, recipe=a_recipe()))
        follower = PolicyFollower(Service("rollout", deployment, exchange), start)
        task = asyncio.create_task(follower.follow_policy_forever())
        await _announce(exchange, deployment, 0)
        await asyncio.wait_for(served(follower), 60)
        await _announce(exchange, deployment, 1)
        await asyncio.wait_for(engine.loading.wait(), 60)
        yield Following(exchange, deployment, follower, engine, task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def served(follower: PolicyFollower, min_version: int = 0) -> None:
    async with follower.acquire_engine(a_request(min_version=min_version)):
        pass


def failures(why: str) -> float:
    name = "weir_weight_sync_failures_total"
    return REGISTRY.get_sample_value(name, {"why": why}) or 0.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def _announce(
    exchange: Exchange, deployment: Deployment, number: int, probes: Probes | None = None
) -> None:
    folder = weights.version_folder("job", 1, number)
    digest = weights.write(
        deployment.weights_dir, folder, lambda target: write_folder(target, value=float(number))
    )
    version = {"job_id": "job", "attempt": 1, "number": number, "folder": folder}
    await exchange.announce(PolicyVersion(**version, digest=digest, probes=probes))


async def test_a_request_waits_while_weights_are_loaded(line: Following) -> None:
    waiting = asyncio.create_task(served(line.follower))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    line.engine.end_of_load.set_result(None)
    await asyncio.wait_for(waiting, 60)
    assert line.follower.serving is not None
    assert line.follower.serving.policy.number == 1


async def test_weights_that_lie_elsewhere_are_not_loaded_again(line: Following) -> None:
    line.engine.end_of_load.set_result(None)
    await served(line.follower, min_version=1)
    newest = await line.exchange.newest_policy("job")
    assert newest is not None
    elsewhere = newest.model_copy(update={"links": ("job/1.1.link",)})
    assert line.follower._has_taken(elsewhere)
    assert not line.follower._has_taken(elsewhere.model_copy(update={"digest": "?"}))


async def test_an_engine_that_does_not_start_is_told_of_with_the_job_that_it_was_for(
    line: Following,
) -> None:
    async def fail(*_: object) -> Engine:
        raise EngineError("whatever vLLM says")

    another = PolicyFollower(line.follower.service, fail)
    with pytest.raises(StartupFailed, match="whatever vLLM says") as told:
        await asyncio.wait_for(another.follow_policy_forever(), 60)
    assert told.value.job_id == "job"


async def test_weights_that_are_taken_away_while_they_are_loaded_are_no_failure(
    line: Following,
) -> None:
    """As at the end of every job."""
    before = failures("gone")
    shutil.rmtree(line.deployment.weights_dir / "job")
    line.engine.end_of_load.set_exception(LoadError("load: FileNotFoundError"))
    await until(lambda: failures("gone") > before)
    assert not line.task.done()
    assert (line.follower.serving, line.follower._load_failures) == (None, 0)


async def test_an_engine_sleeps_in_the_learners_turn_and_loads_nothing_meanwhile(
    line: Following,
) -> None:
    service, engine = line.follower.service, line.engine
    service.deployment = replace(line.deployment, turns=("0",))
    learner, taken = Turns(service), asyncio.Event()

    async def compute() -> None:
        async with learner.learner_turn():
            taken.set()
            assert engine.sleeps
            engine.loading.clear()
            await _announce(line.exchange, line.deployment, 3)
            await asyncio.sleep(0.3)
            assert not engine.loading.is_set()

    turns = asyncio.create_task(line.follower.take_turns_forever())
    engine.end_of_load.set_result(None)
    await asyncio.wait_for(served(line.follower, min_version=1), 60)
    engine.end_of_load = asyncio.get_running_loop().create_future()
    engine.loading.clear()
    await _announce(line.exchange, line.deployment, 2)
    await asyncio.wait_for(engine.loading.wait(), 60)
    computing = asyncio.create_task(compute())
    await asyncio.sleep(0.3)
    assert not taken.is_set(), "the engine loads"
    engine.end_of_load.set_result(None)
    await asyncio.wait_for(computing, 60)
    await asyncio.wait_for(served(line.follower, min_version=3), 60)
    assert not engine.sleeps
    turns.cancel()


async def test_a_version_that_cannot_be_copied_is_left_for_the_next(
    line: Following,
) -> None:
    """As where memory is full; here a folder is where a file should be."""
    line.engine.end_of_load.set_result(None)
    (line.deployment.weights_dir / "job/1.2.link/model").mkdir(parents=True)
    elsewhere = PolicyVersion(
        **{"job_id": "job", "attempt": 1, "number": 2, "folder": "job/1.2", "digest": "?"},
        links=("job/1.2.link",),
    )
    before = failures("damaged")
    await line.exchange.announce(elsewhere)
    waiting = asyncio.create_task(served(line.follower, min_version=2))
    await until(lambda: failures("damaged") > before)
    assert not line.task.done()
    await _announce(line.exchange, line.deployment, 3)
    await asyncio.wait_for(waiting, 60)


async def test_who_refuses_weights_says_so_and_claims_nothing_until_others_are_served(
    line: Following,
) -> None:
    job = ActiveJob(job_id="job", attempt=1, recipe=a_recipe())
    line.engine.end_of_load.set_result(None)
    await asyncio.wait_for(served(line.follower, min_version=1), 60)
    assert line.follower.serves(job)
    rendered = digest_prompts((), None, cast(Any, None), {})
    given = {"tasks": (), "rendered": rendered, "token_ids": (1, 2), "most": 0.1}
    await _announce(line.exchange, line.deployment, 2, Probes(**given, logprobs=(-2.0,)))
    await until(lambda: line.task.done() or not line.follower.serves(job))
    (report,) = StatusReporter(line.follower.service).status().parity
    assert (report.version, report.agrees) == (2, False)
    await _announce(line.exchange, line.deployment, 3)
    await asyncio.wait_for(served(line.follower, min_version=3), 60)
    assert line.follower.serves(job)


async def test_links_of_an_adapter_stay_where_its_base_is_damaged(line: Following) -> None:
    root = line.deployment.weights_dir
    digest = weights.write(root, "job/1.2", lambda target: write_folder(target))
    deltas.write_link(root / "job/1.2", None, link := root / "job/1.2.link")
    shutil.rmtree(root / "job/1.2")
    base_digest = weights.write(root, "job/1.base", lambda target: write_folder(target))
    (root / "job/1.base/tokenizer.json").write_text("damaged")
    adapter = PolicyVersion(
        **{"job_id": "job", "attempt": 1, "number": 2, "folder": "job/1.2", "digest": digest},
        **{"links": ("job/1.2.link",), "base": "job/1.base", "base_digest": base_digest},
    )
    begun = PolicyFollower(line.follower.service, line.follower.start_engine)
    before = failures("damaged")
    await begun._try_policy(adapter, ActiveJob(job_id="job", attempt=1, recipe=a_recipe()))
    assert failures("damaged") == before + 1
    assert link.exists()
