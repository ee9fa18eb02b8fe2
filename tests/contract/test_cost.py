"""A job's cost is what every process has used while the job was active."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, Requested

from services.chassis.cost import CostReporter, report_attempt_forever
from services.chassis.service import Service
from services.chassis.turns import Turns
from tests.builders import a_recipe
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import DEPLOYMENT, begin, running
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
# A process that computes for this many seconds of its own, says so, and waits.
_COMPUTE = """
import sys, time
while time.process_time() < float(sys.argv[1]):
    pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def computing(seconds: float, *, is_child_of_child: bool = False) -> Iterator[None]:
    """A process that has computed and waits; perhaps its child has."""
    command = [sys.executable, "-c", _COMPUTE, str(seconds)]
    if is_child_of_child:
        command = ["/bin/sh", "-c", '"$@"; true', "sh", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        yield


async def activate(exchange: Exchange, job_id: str = "job") -> int:
    attempt = await begin(exchange, job_id)
    await exchange.activate(ActiveJob(job_id=job_id, attempt=attempt, recipe=a_recipe()))
    return attempt


def used(core_seconds: float, service: str = "rollout") -> dict[str, float]:
    return {f"core_seconds:{service}": core_seconds}


async def cost_of(exchange: Exchange, service: str, job_id: str = "job") -> float:
    return (await exchange.cost(job_id))["core_seconds"].get(service, 0.0)


async def test_descendants_count_whether_they_live_or_have_ended(exchange: Exchange) -> None:
    await activate(exchange)
    reporter = CostReporter(exchange, "rollout")
    await reporter.report()
    before = await cost_of(exchange, "rollout")
    with computing(0.4, is_child_of_child=True):
        reporter.find_at = 0  # new descendants are looked for now and then
        await reporter.report()
        while_they_live = await cost_of(exchange, "rollout") - before
    with computing(0.4):
        pass  # it begins and ends between two reports
    await reporter.report()
    total = await cost_of(exchange, "rollout")
    assert while_they_live >= 0.35  # the system counts in hundredths
    assert total - before >= 0.75
    await reporter.report()
    assert await cost_of(exchange, "rollout") - total < 0.35  # no second counts twice


async def test_workers_add_up_and_only_a_job_with_an_attempt_pays(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("rollout-b-1.1") as other:
        reporter = CostReporter(other, "rollout")
        await reporter.report()  # no job has an attempt
        attempt = await activate(exchange)
        for worker, seconds in ((exchange, 1.5), (other, 2.0), (other, 0.25)):
            await worker.add_cost("job", {**used(seconds), "gpu_seconds:rollout": 2 * seconds})
        await exchange.add_cost("job", used(1.0, "grader"))
        cost = await exchange.cost("job")
        assert cost["core_seconds"] == {"rollout": 3.75, "grader": 1.0}
        assert cost["gpu_seconds"] == {"rollout": 7.5}
        await reporter.report()
        await exchange.request_state("job", Requested.PAUSE)
        with computing(0.4):
            assert await exchange.pause_job("job", attempt, None)
            await reporter.report()  # its process is new, and the attempt has just ended
        spent = await cost_of(exchange, "rollout")
        assert spent > 3.75 + 0.35
        with computing(0.4):
            await reporter.report()
        assert await cost_of(exchange, "rollout") == spent
        await exchange.request_state("job", Requested.CANCEL)
        await activate(exchange, "next")
        await reporter.report()
        assert await cost_of(exchange, "rollout") == spent
        assert await cost_of(exchange, "rollout", "next") > 0
    assert await exchange.forget_job("job")
    await exchange.add_cost("job", used(1.0))
    assert not (await exchange.cost("job"))["core_seconds"]


async def test_a_service_that_dies_keeps_what_it_has_reported(
    server: Server, exchange: Exchange
) -> None:
    await activate(exchange)
    for life in range(2):
        async with connect(server.url, me=f"rollout-host-1.{life}") as own:
            with computing(0.3):
                await CostReporter(own, "rollout").report()
    assert await cost_of(exchange, "rollout") >= 0.6


async def test_the_server_counts_and_a_restarted_one_too(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(own_server.url, me="learner-1", patience_s=20) as exchange:
        await activate(exchange)
        used = iter([30.0, 31.0, 0.5, 0.75])

        async def server_core_seconds() -> float:
            return next(used, 0.75)

        assert await exchange.server_core_seconds() > 0
        monkeypatch.setattr(exchange, "server_core_seconds", server_core_seconds)
        async with running(report_attempt_forever(exchange, "job", 0.01)), asyncio.timeout(30):
            while await cost_of(exchange, "redis") < 1.25:
                await asyncio.sleep(0.01)
        own_server.exhaust_memory()
        await exchange.set_tokens("job", {"train/sampled": 12})
        await exchange.add_cost("job", {"core_seconds:grader": 1.0})
        cost = await exchange.cost("job")
        assert (cost["tokens"], cost["core_seconds"]["grader"]) == ({"train/sampled": 12}, 1.0)
        assert await cost_of(exchange, "redis") == 1.25


async def test_gpus_are_held_by_the_process_and_in_turns_only_in_its_turn(
    exchange: Exchange, tmp_path: Path
) -> None:
    alone = Service("learner", replace(DEPLOYMENT, num_gpus=4), exchange)
    assert alone.held_gpus == 4
    deployment = replace(DEPLOYMENT, num_gpus=2, turns=("0", "1"), memory_dir=tmp_path)
    sharing = Service("learner", deployment, exchange)
    assert sharing.held_gpus == 0
    async with Turns(sharing).learner_turn():
        assert sharing.held_gpus == 2
    assert sharing.held_gpus == 0
