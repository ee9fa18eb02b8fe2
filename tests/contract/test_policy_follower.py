"""A rollout follows the policy: requests wait for weights, and nothing is lost to a load."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NoReturn

import pytest
from prometheus_client import REGISTRY
from protocol import deltas, weights
from protocol.messages import PolicyVersion

from services.chassis.faults import StartupFailed
from services.chassis.service import StatusReporter
from services.chassis.turns import Turns
from services.rollout import engine_errors
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import EngineError, LoadError
from tests.contract.exchange_steps import an_active_job, until
from tests.contract.rollout_line import Line, probes_of
from tests.unit.rollout.test_policy_sync import write_folder


@pytest.fixture
async def loading(line: Line) -> Line:
    """A rollout that has served version 0, and loads version 1."""
    await line.begin_job()
    await line.sample()
    line.engine.may_load.clear()
    await line.announce(1)
    await until(lambda: line.engine.is_loading)
    return line


@pytest.fixture
async def serving(line: Line) -> Line:
    """A rollout that serves version 0."""
    await line.begin_job()
    await line.sample()
    return line


@asynccontextmanager
async def failing(why: str) -> AsyncIterator[None]:
    """By the end of the body one load more has failed for this reason."""

    def failures() -> float:
        name = "weir_weight_sync_failures_total"
        return REGISTRY.get_sample_value(name, {"why": why}) or 0.0

    before = failures()
    yield
    await until(lambda: failures() == before + 1)


async def test_a_request_waits_while_weights_are_loaded(loading: Line) -> None:
    waiting = asyncio.create_task(loading.sample())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    loading.engine.may_load.set()
    await waiting
    assert loading.follower.serving is not None
    assert loading.follower.serving.policy.number == 1


async def test_weights_that_lie_elsewhere_are_not_loaded_again(serving: Line) -> None:
    newest = await serving.exchange.newest_policy("job")
    assert newest is not None
    elsewhere = newest.model_copy(update={"links": ("job/1.0.link",)})
    assert serving.follower._has_taken(elsewhere)
    assert not serving.follower._has_taken(elsewhere.model_copy(update={"digest": "?"}))


async def test_an_engine_that_does_not_start_is_told_of_with_the_job_that_it_was_for(
    serving: Line,
) -> None:
    async def fail(*_: object) -> NoReturn:
        raise EngineError("whatever vLLM says")

    another = PolicyFollower(serving.service, fail)
    with pytest.raises(StartupFailed, match="whatever vLLM says") as failure:
        await asyncio.wait_for(another.follow_policy_forever(), 60)
    assert failure.value.job_id == "job"


def hang() -> None:
    engine_errors.record()
    vllm = logging.getLogger("vllm")
    vllm.setLevel(logging.INFO)
    vllm.info("Profiling the memory\nCapturing CUDA graphs")
    time.sleep(600)


async def test_an_engine_that_hangs_while_it_starts_is_ended_at_the_limit(
    serving: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = multiprocessing.get_context("fork").Process(target=hang, daemon=True)
    bystander = multiprocessing.get_context("fork").Process(target=hang, daemon=True)
    bystander.start()

    async def start(*_: object) -> NoReturn:
        engine_errors.reset()
        process.start()
        await asyncio.to_thread(process.join)  # as vLLM waits for its processes
        raise EngineError("a process of vLLM has ended")

    monkeypatch.setenv("WEIR_ROLLOUT_START_TIMEOUT_S", "1.5")
    another = PolicyFollower(serving.service, start)
    with pytest.raises(StartupFailed) as failure:
        await asyncio.wait_for(another.follow_policy_forever(), 60)
    assert str(failure.value) == (
        "the engine did not start within 1.5 s (WEIR_ROLLOUT_START_TIMEOUT_S); the last line of "
        "vLLM's log: Capturing CUDA graphs"
    )
    assert failure.value.job_id == "job"
    await until(lambda: process.exitcode == -signal.SIGKILL)
    assert bystander.is_alive()
    bystander.kill()
    bystander.join()


async def test_weights_that_are_taken_away_while_they_are_loaded_are_no_failure(
    loading: Line,
) -> None:
    """As at the end of every job."""
    async with failing("gone"):
        shutil.rmtree(loading.weights_dir / "job")
        loading.engine.fault = LoadError("load: FileNotFoundError")
        loading.engine.may_load.set()
    assert not any(task.done() for task in loading.tasks)
    assert (loading.follower.serving, loading.follower._load_failures) == (None, 0)


async def test_an_engine_sleeps_in_the_learners_turn_and_loads_nothing_meanwhile(
    serving: Line,
) -> None:
    engine, service = serving.engine, serving.service
    service.deployment = replace(service.deployment, turns=("0",))
    turns = asyncio.create_task(serving.follower.take_turns_forever())
    has_turn = asyncio.Event()

    async def compute() -> None:
        async with Turns(service).learner_turn():
            has_turn.set()
            assert engine.sleeps
            await serving.announce(2)
            await asyncio.sleep(0.3)
            assert engine.loaded == ["1.0", "1.1"]
            assert not engine.is_loading

    engine.may_load.clear()
    await serving.announce(1)
    await until(lambda: engine.is_loading)
    computing = asyncio.create_task(compute())
    await asyncio.sleep(0.3)
    assert not has_turn.is_set(), "the engine loads"
    engine.may_load.set()
    await asyncio.wait_for(computing, 60)
    await serving.sample(min_version=2)
    assert not engine.sleeps
    turns.cancel()


async def test_a_version_that_cannot_be_copied_is_left_for_the_next(serving: Line) -> None:
    """As where memory is full; here a folder is where a file should be."""
    (serving.weights_dir / "job/1.2.link/model").mkdir(parents=True)
    version = {
        "job_id": "job",
        "attempt": 1,
        "number": 2,
        "folder": "job/1.2",
        "digest": "?",
    }
    async with failing("damaged"):
        await serving.exchange.announce(PolicyVersion(**version, links=("job/1.2.link",)))
        waiting = asyncio.create_task(serving.sample(min_version=2))
    assert not any(task.done() for task in serving.tasks)
    await serving.announce(3)
    await waiting


async def test_who_refuses_weights_says_so_and_claims_nothing_until_others_are_served(
    serving: Line,
) -> None:
    assert serving.follower.serves(an_active_job())
    await serving.announce(2, probes=probes_of(-2.0))
    await until(lambda: not serving.follower.serves(an_active_job()))
    (report,) = StatusReporter(serving.service).status().parity
    assert (report.version, report.agrees) == (2, False)
    await serving.announce(3)
    await serving.sample(min_version=3)
    assert serving.follower.serves(an_active_job())


async def test_links_of_an_adapter_stay_where_its_base_is_damaged(serving: Line) -> None:
    root = serving.weights_dir
    digest = weights.write(root, "job/1.2", write_folder)
    deltas.write_link(root / "job/1.2", None, link := root / "job/1.2.link")
    shutil.rmtree(root / "job/1.2")
    base_digest = weights.write(root, "job/1.base", write_folder)
    (root / "job/1.base/tokenizer.json").write_text("damaged")
    version = {
        "job_id": "job",
        "attempt": 1,
        "number": 2,
        "folder": "job/1.2",
        "digest": digest,
    }
    base = {"links": ("job/1.2.link",), "base": "job/1.base", "base_digest": base_digest}
    follower = PolicyFollower(serving.service, serving.follower.start_engine)
    async with failing("damaged"):
        await follower._try_policy(PolicyVersion(**version, **base), an_active_job())
    assert link.exists()
