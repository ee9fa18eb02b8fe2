"""A learner process pauses a job that its stack cannot run, and says in the record what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from protocol.exchange import Exchange
from protocol.messages import JobState

from tests.architecture.project import ROOT
from tests.builders import a_job_record, a_recipe
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


async def test_a_model_whose_heads_the_placement_splits_wrongly_waits_for_another_placement(
    server: Server, exchange: Exchange, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    shutil.copy(ROOT / "examples/arithmetic/train.jsonl", tmp_path / "files/train.jsonl")
    recipe = a_recipe(model={"path": "base-model"}, tasks={"train": "train"})
    await exchange.submit(a_job_record(recipe=recipe))
    environment = {
        **os.environ,
        "WEIR_REDIS_URL": server.url,
        "WEIR_DATA_DIR": str(tmp_path),
        "WEIR_MODEL_ROOTS": str(ROOT / "examples/arithmetic"),
        "WEIR_PORT": "0",
        "WEIR_HEARTBEAT_S": "0.1",
        "WEIR_GPUS": "learner=0 rollout=1-3",
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}",
    }
    learner = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.learner", env=environment, cwd=ROOT
    )
    try:
        async with asyncio.timeout(120):
            assert await learner.wait() == 0
    finally:
        if learner.returncode is None:
            learner.kill()
    record = await exchange.job("job")
    assert record is not None
    assert (record.state, record.attempt) == (JobState.PAUSED, 1)
    assert "rollout=1-3: its 4 attention heads cannot be split evenly over 3" in str(record.error)
    assert "in WEIR_GPUS write rollout= with 1, 2 or 4 GPUs" in str(record.error)
