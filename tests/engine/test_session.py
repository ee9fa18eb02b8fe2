"""A client's session on the real learner: its operations, also after a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from protocol.exchange import connect
from protocol.messages import ErrorKind, JobRecord, JobState, Probes
from protocol.operations import PROBES, AdamW, Data, Operation, OperationLog, Result
from protocol.recipe import parse_recipe
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from deploy.processes import free_ports
from services.learner.durable.trained_rows import MAX_SEQUENCES
from tests.architecture.project import ROOT
from tests.contract.valkey_server import Server
from tests.kept_samples import all_samples

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
MODEL = ROOT / "examples/arithmetic/base-model"
ADAM = AdamW(learning_rate=1e-3, max_grad_norm=1.0)
PATIENCE_S = 120
COUNTS = [16, 16, 16, 16, 16, 300]  # of each step's data


def some_data(seed: int, count: int) -> Data:
    """Sequences of several lengths, with log-probs that are near those of the model."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 12, count)
    size = int(lengths.sum())
    return Data(
        lengths=lengths,
        input_ids=random.integers(1, 20, size),
        targets=random.integers(1, 20, size),
        weights=random.normal(size=size) / size,
        behavior_logprobs=-random.random(size) * 3,
    )


def select_part(data: Data, first: int, last: int) -> Data:
    ends = [0, *np.cumsum(data.lengths).tolist()]
    cut = slice(ends[first], ends[last])
    names = ("input_ids", "targets", "weights", "behavior_logprobs")
    return Data(lengths=data.lengths[first:last], **{n: getattr(data, n)[cut] for n in names})


@dataclass
class Client:
    """A session with the learner that it is for, a process."""

    server: Server
    folder: Path
    job_id: str = "ftjob-" + "0" * 24
    process: subprocess.Popen[bytes] | None = None
    number: int = 0
    lives: int = field(default=0)

    @property
    def log(self) -> OperationLog:
        return OperationLog(self.folder / "jobs" / self.job_id)

    async def begin(self, lora: dict[str, Any] | None = None, **client: Any) -> None:
        model = {"path": "base-model", "dtype": "float32", "prompt_template": "{prompt}"}
        model |= {"max_context": 64} | ({"lora": lora} if lora else {})
        training = {"steps": 10**9, "checkpoint_every": 2, "micro_batch_tokens": 512}
        tables = {"name": "session", "model": model, "training": training, "client": client}
        record = JobRecord(id=self.job_id, created_at=1e9, recipe=parse_recipe(tables))
        async with connect(self.server.url, me="test") as exchange:
            await exchange.submit(record)
        self.log.add(Operation(number=0, do="create"))
        self.start()

    def start(self) -> None:
        self.lives += 1
        environment = {
            **os.environ,
            "WEIR_REDIS_URL": self.server.url_of("learner"),
            "WEIR_DATA_DIR": str(self.folder),
            "WEIR_MODEL_ROOTS": str(MODEL.parent),
            "WEIR_PORT": str(next(free_ports())),
            "WEIR_NAME": "learner",
            "WEIR_HEARTBEAT_S": "0.2",
            "WEIR_CLAIM_IDLE_S": "2",
        }
        with (self.folder / "learner.log").open("ab") as out:
            command = [sys.executable, "-m", "services.learner"]
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, do: Any, **values: Any) -> int:
        self.number += 1
        self.log.add(Operation(number=self.number, do=do, **values))
        return self.number

    async def result(self, number: int) -> Result:
        async with asyncio.timeout(PATIENCE_S):
            while (result := self.log.result(number)) is None:
                assert self.process is not None
                if self.process.poll() is not None:  # as its supervisor would
                    self.start()
                await asyncio.sleep(0.02)
        return result

    async def did(self, do: Any, **values: Any) -> Result:
        result = await self.result(self.ask(do, **values))
        assert not result.error
        return result

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        folder = self.log.job_folder / "samplers" / name
        (file,) = folder.glob("*.safetensors")
        return load_file(file)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "redis").mkdir()
    with Server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[Client]:
    client = Client(server, tmp_path)
    yield client
    client.kill()


async def steps(client: Client, seeds: Sequence[int], loss: Any = "ppo") -> None:
    for seed in seeds:
        client.ask("forward_backward", data=some_data(seed, COUNTS[seed]), loss=loss)
        await client.did("optim_step", adam=ADAM)


async def same_weights(client: Client, name: str, expected: dict[str, torch.Tensor]) -> None:
    await client.did("save_sampler", name=name)
    parts = client.weights(name)
    assert parts.keys() == expected.keys()
    assert all(torch.equal(parts[key], expected[key]) for key in expected)


async def test_kills_between_operations_change_no_bit(
    client: Client, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    undisturbed = Client(server, tmp_path / "other", "ftjob-" + "1" * 24)
    await client.begin()
    for seed in range(6):
        client.ask("forward_backward", data=some_data(seed, COUNTS[seed]), loss="ppo")
        if seed in {1, 4}:
            client.kill()
        number = client.ask("optim_step", adam=ADAM)
        if seed in {2, 4}:
            client.kill()
        await client.result(number)
    await client.did("save_sampler", name="final")
    disturbed = client.weights("final")
    assert client.lives >= 4
    client.kill()
    (client.log.job_folder / "states/.unfinished-1-a").mkdir(parents=True)
    client.start()
    await client.did("end")
    client.kill()  # the job may have ended before
    client.start()
    async with connect(server.url, me="test") as exchange, asyncio.timeout(PATIENCE_S):
        while (record := await exchange.job(client.job_id)) is not None:
            if record.state is JobState.SUCCEEDED:
                break
            await asyncio.sleep(0.1)
    client.kill()
    assert not [*(client.log.job_folder / "states").iterdir()]
    await undisturbed.begin()
    try:
        await steps(undisturbed, range(6))
        await same_weights(undisturbed, "final", disturbed)
        await undisturbed.did("end")
        assert undisturbed.process is not None
        await asyncio.to_thread(undisturbed.process.wait, PATIENCE_S)
        assert len(samples := read_samples(undisturbed)) == 5 * 16 + MAX_SEQUENCES
        assert read_samples(client) == samples
    finally:
        undisturbed.kill()


def read_samples(client: Client) -> list[str]:
    """What is kept of each sequence, without what tells attempts apart."""
    groups = all_samples(client.log.job_folder / "samples")
    return [str(row | {"attempt": 0, "created_at": 0}) for rows in groups for row in rows]


async def test_parts_of_the_data_add_up_bit_for_bit(client: Client) -> None:
    data = some_data(7, 24)
    await client.begin()
    await client.did("save_state", name="first")
    await client.did("forward_backward", data=data, loss="importance_sampling")
    await client.did("optim_step", adam=ADAM)
    await client.did("save_sampler", name="whole")
    source = str(client.log.job_folder / "states" / "first")
    await client.did("load_state", source=source, with_optimizer=True)
    for first, last in ((0, 8), (8, 24)):
        part = select_part(data, first, last)
        await client.did("forward_backward", data=part, loss="importance_sampling")
    await client.did("optim_step", adam=ADAM)
    await same_weights(client, "parts", client.weights("whole"))


async def test_losses_and_steps_are_those_of_plain_torch(client: Client) -> None:
    await client.begin()
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-12)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    for seed, loss in enumerate(("cross_entropy", "importance_sampling", "ppo", "cispo")):
        data = some_data(seed, 5)
        inputs = await client.did("forward_backward", data=data, loss=loss)
        expected = plain_loss(model, data, loss)
        expected.backward()
        assert inputs.metrics["loss:sum"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepped = await client.did("optim_step", adam=ADAM)
        assert stepped.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
        optimizer.step()
        optimizer.zero_grad()
    looked = await client.did("forward", data=some_data(9, 5))
    assert looked.logprobs is not None
    expected = torch.cat(read_logprobs(model, some_data(9, 5))).detach().numpy()
    np.testing.assert_allclose(looked.logprobs, expected, atol=1e-3)


def read_logprobs(model: Any, data: Data) -> list[torch.Tensor]:
    parts = []
    first = 0
    for length in data.lengths.tolist():
        ids, targets = (
            torch.from_numpy(array[first : first + length].astype(np.int64))
            for array in (data.input_ids, data.targets)
        )
        parts.append(model(ids[None]).logits[0].log_softmax(-1)[torch.arange(length), targets])
        first += length
    return parts


def plain_loss(model: Any, data: Data, loss: str) -> torch.Tensor:
    logprobs = torch.cat(read_logprobs(model, data))
    weights, behavior = map(torch.tensor, (data.weights, data.behavior_logprobs))
    ratio = (logprobs - behavior).exp()
    match loss:
        case "cross_entropy":
            return -(weights * logprobs).sum()
        case "importance_sampling":
            return -(ratio * weights).sum()
        case "ppo":
            return -torch.minimum(ratio * weights, ratio.clamp(0.8, 1.2) * weights).sum()
        case _:
            return -(ratio.clamp(0.8, 1.2).detach() * weights * logprobs).sum()


async def test_a_state_is_saved_loaded_and_refused(client: Client) -> None:
    await client.begin(lora={"rank": 4})
    await steps(client, range(2))
    await client.did("save_state", name="two")
    await client.did("save_sampler")
    (sampler,) = (client.log.job_folder / "samplers").iterdir()
    probes = Probes.model_validate_json((sampler / PROBES).read_bytes())
    assert sampler.name == "version-000002"
    assert len(probes.logprobs) == len(probes.token_ids) - 1
    await steps(client, (2, 3))
    await client.did("save_sampler", name="four")
    source = str(client.log.job_folder / "states" / "two")
    await client.did("load_state", source=source, with_optimizer=True)
    await steps(client, (2, 3))
    await same_weights(client, "again", client.weights("four"))
    for do, values, why in (
        ("save_state", {"name": "two"}, "exists"),
        ("load_state", {"source": str(client.folder)}, "no state"),
        ("refuse", {"why": "no such loss"}, "no such loss"),
    ):
        refused = await client.result(client.ask(do, **values))
        assert refused.is_users
        assert why in refused.error
    await steps(client, (4,))
    await load_again_without_the_state(client, source)


async def load_again_without_the_state(client: Client, source: str) -> None:
    """The weights cannot be made again where the checkpoint after a load is damaged: it is told."""
    await client.did("load_state", source=source, with_optimizer=True)
    client.kill()
    shutil.rmtree(source)
    newest = max((client.log.job_folder / "checkpoints").iterdir())
    (newest / "state.json").write_text("damaged")
    client.start()
    async with connect(client.server.url, me="test") as exchange, asyncio.timeout(PATIENCE_S):
        while (record := await exchange.job(client.job_id)) is None or not record.error:
            await asyncio.sleep(0.1)
    assert "must be loaded again" in record.error.message


async def test_a_silent_client_lets_others_go_first(client: Client) -> None:
    await client.begin(silent_s=1.0)
    async with connect(client.server.url, me="test") as exchange:
        async with asyncio.timeout(PATIENCE_S):
            while (record := await exchange.job(client.job_id)) is None or record.error is None:
                await asyncio.sleep(0.1)
    assert record.error.kind is ErrorKind.SILENT_CLIENT
