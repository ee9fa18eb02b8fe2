"""A process that is told to stop ends, whatever its threads do; and so does one with its job."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from protocol.messages import JobState, Requested
from protocol.recipe import Recipe

from deploy.processes import free_ports
from services.chassis import renderer
from tests.architecture.project import ROOT
from tests.contract.attempts import PATIENCE_S, Learner
from tests.contract.exchange_steps import record_of
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

HANGS = """
import asyncio, sys, threading
from services.chassis import service

async def main(running):
    running.saves_work = len(sys.argv) > 3
    work = asyncio.to_thread(threading.Event().wait)
    print("runs", flush=True)
    if sys.argv[1] == "awaited":
        await work
    hanging = asyncio.create_task(work)
    await running.stopping.wait()
    await asyncio.sleep(float(sys.argv[2]))
    print("saved", flush=True)

service.CLEANUP_TIMEOUT_S = service.EXIT_TIMEOUT_S = 0.2
service.run_service("test", main)
"""


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("awaited", "0"), "runs\n"),
        (("beside", "0"), "runs\nsaved\n"),
        (("beside", "3600"), "runs\n"),
        (("beside", "1", "saves"), "runs\nsaved\n"),
    ],
)
def test_a_service_whose_thread_hangs_ends_when_it_is_told_to(
    server: Server, tmp_path: Path, arguments: tuple[str, ...], output: str
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]),
        "WEIR_REDIS_URL": server.url,
        "WEIR_DATA_DIR": str(tmp_path),
        "WEIR_PORT": str(next(free_ports())),
        "WEIR_DRAIN_S": "0",
    }
    command = [sys.executable, "-c", HANGS, *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert first + process.stdout.read() == output
    finally:
        process.kill()


@dataclass
class Opening(FakeTeam):
    """A team that loads its models for ever."""

    opens: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(
        self,
        folder: Path,
        recipe: Recipe,
        critic_folder: Path | None = None,
    ) -> None:
        self.opens.set()
        await asyncio.Event().wait()


async def opening(learner: Learner) -> asyncio.Task[None]:
    """An attempt at the first of two jobs."""
    await learner.submit()
    await learner.submit("next", steps=2)
    team = Opening()
    attempt = learner.start(team)
    await team.opens.wait()
    return attempt


@pytest.mark.parametrize(
    ("requested", "state"),
    [(Requested.CANCEL, JobState.CANCELLED), (Requested.PAUSE, JobState.PAUSED)],
)
async def test_what_is_requested_while_models_load_is_obeyed_and_the_next_job_is_taken_up(
    learner: Learner, requested: Requested, state: JobState
) -> None:
    attempt = await opening(learner)
    await learner.exchange.request_state("job", requested)
    await attempt
    record = await learner.attempt()
    assert record.state is state
    assert (await record_of(learner.exchange, "next")).state is JobState.SUCCEEDED


async def test_a_learner_stops_while_models_load(learner: Learner) -> None:
    attempt = await opening(learner)
    learner.service.stop()
    await attempt


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2, "did not end within 3 s of CPU"),
        ("{{ 'a' * 10**10 }}", "takes more than 1 GiB of memory"),
    ],
)
async def test_a_job_whose_template_takes_too_much_fails_by_name_before_its_models_load(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, words: str
) -> None:
    monkeypatch.setattr(renderer, "TOKENIZER_CPU_S", 3.0)  # a busy machine takes long for ten
    learner.models = tmp_path / "models"
    folder = shutil.copytree(ROOT / "examples/arithmetic/base-model", learner.models / "base-model")
    (folder / "chat_template.jinja").write_text(template)
    await learner.submit(tables={"model": {"path": "base-model"}})
    learner.make_team = Opening
    learner.is_confined = True
    record = await learner.attempt()
    assert record.state is JobState.FAILED
    assert words in str(record.error)
    assert "model.prompt_template" in str(record.error)
