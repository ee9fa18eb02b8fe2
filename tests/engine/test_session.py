"""A client's session on the real learner: its operations, also after a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
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
from tests.engine.ranks import FORKS, Ranks
from tests.kept_samples import all_samples

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
MODEL = ROOT / "examples/arithmetic/base-model"
ADAM = AdamW(learning_rate=1e-3, max_grad_norm=1.0)
PATIENCE_S = 120
SILENT_S = 15
COUNTS = [16, 16, 16, 16, 16, 300]  # of each step's data


def learn(environment: dict[str, str], log: Path) -> None:
    """The life of a learner, in a process that has imported everything."""
    from services.learner.__main__ import main

    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ |= environment
    main()


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
    parts = {name: getattr(data, name)[cut] for name in names}
    return Data(lengths=data.lengths[first:last], **parts)


@dataclass
class Client:
    """A session with the learner that it is for, a process."""

    server: Server
    folder: Path
    job_id: str = "ftjob-" + "0" * 24
    process: ForkServerProcess | None = None
    number: int = 0
    lives: int = 0

    @property
    def log(self) -> OperationLog:
        return OperationLog(self.folder / "jobs" / self.job_id)

    async def begin(
        self,
        lora: dict[str, Any] | None = None,
        **client: Any,
    ) -> None:
        model = {"path": "base-model", "dtype": "float32", "prompt_template": "{prompt}"}
        training = {"steps": 10**9, "checkpoint_every": 2, "micro_batch_tokens": 512}
        recipe = {
            "name": "session",
            "model": {**model, "max_context": 64, "lora": lora},
            "training": training,
            "client": client,
        }
        record = JobRecord(
            id=self.job_id,
            created_at=1e9,
            recipe=parse_recipe(recipe),
        )
        async with connect(self.server.url, me="test") as exchange:
            await exchange.submit(record)
        self.log.add(Operation(number=0, do="create"))
        self.start()

    def start(self) -> None:
        self.lives += 1
        environment = {
            "WEIR_REDIS_URL": self.server.url_of("learner"),
            "WEIR_DATA_DIR": str(self.folder),
            "WEIR_MODEL_ROOTS": str(MODEL.parent),
            "WEIR_PORT": str(next(free_ports())),
            "WEIR_NAME": "learner",
            "WEIR_HEARTBEAT_S": "0.2",
            "WEIR_CLAIM_IDLE_S": "2",
        }
        arguments = (environment, self.folder / "learner.log")
        self.process = FORKS.Process(target=learn, args=arguments, daemon=True)
        self.process.start()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.join()

    async def until_job(self, condition: Callable[[JobRecord], object]) -> JobRecord:
        async with connect(self.server.url, me="test") as exchange, asyncio.timeout(PATIENCE_S):
            while (record := await exchange.job(self.job_id)) is None or not condition(record):
                await asyncio.sleep(0.1)
        return record

    def ask(self, do: Any, **values: Any) -> int:
        self.number += 1
        self.log.add(
            Operation(
                number=self.number,
                do=do,
                **values,
            )
        )
        return self.number

    async def result(self, number: int) -> Result:
        async with asyncio.timeout(PATIENCE_S):
            while (result := self.log.result(number)) is None:
                assert self.process is not None
                if not self.process.is_alive():  # as its supervisor would
                    self.start()
                await asyncio.sleep(0.02)
        return result

    async def did(self, do: Any, **values: Any) -> Result:
        result = await self.result(self.ask(do, **values))
        assert not result.error
        return result

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        (file,) = (self.log.job_folder / "samplers" / name).glob("*.safetensors")
        return load_file(file)

    async def take_steps(self, *seeds: int) -> None:
        for seed in seeds:
            self.ask(
                "forward_backward",
                data=some_data(seed, COUNTS[seed]),
                loss="ppo",
            )
            await self.did("optim_step", adam=ADAM)

    async def has_weights(self, name: str, expected: dict[str, torch.Tensor]) -> None:
        await self.did("save_sampler", name=name)
        weights = self.weights(name)
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[key], expected[key]) for key in expected)

    def read_samples(self) -> list[str]:
        """Of each sequence, without what tells attempts apart."""
        groups = all_samples(self.log.job_folder / "samples")
        return [
            str(
                row
                | {
                    "attempt": 0,
                    "created_at": 0,
                }
            )
            for rows in groups
            for row in rows
        ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "redis").mkdir()
    with Server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def client(server: Server, tmp_path: Path, ranks: Ranks) -> Iterator[Client]:
    client = Client(server, tmp_path)
    yield client
    client.kill()


async def test_kills_between_operations_change_no_bit(
    client: Client, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    undisturbed = Client(server, tmp_path / "other", "ftjob-" + "1" * 24)
    await client.begin()
    for seed in range(6):
        client.ask(
            "forward_backward",
            data=some_data(seed, COUNTS[seed]),
            loss="ppo",
        )
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
    await client.until_job(lambda record: record.state is JobState.SUCCEEDED)
    client.kill()
    assert not [*(client.log.job_folder / "states").iterdir()]
    await undisturbed.begin()
    try:
        await undisturbed.take_steps(*range(6))
        await undisturbed.has_weights("final", disturbed)
        await undisturbed.did("end")
        assert undisturbed.process is not None
        await asyncio.to_thread(undisturbed.process.join, PATIENCE_S)
        samples = undisturbed.read_samples()
        assert len(samples) == 5 * 16 + MAX_SEQUENCES
        assert client.read_samples() == samples
    finally:
        undisturbed.kill()


async def test_losses_and_steps_are_those_of_plain_torch_in_parts_too_until_the_client_is_silent(
    client: Client,
) -> None:
    await client.begin(silent_s=SILENT_S)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0
    )
    for seed, loss in enumerate(("cross_entropy", "importance_sampling", "ppo", "cispo")):
        data = some_data(seed, 5)
        computed = await client.did("forward_backward", data=data, loss=loss)
        expected = plain_loss(model, data, loss)
        expected.backward()
        assert computed.metrics["loss:sum"] == pytest.approx(
            expected.item(),
            rel=1e-4,
            abs=1e-6,
        )
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepped = await client.did("optim_step", adam=ADAM)
        assert stepped.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
        optimizer.step()
        optimizer.zero_grad()
    data = some_data(9, 24)
    computed = await client.did("forward", data=data)
    assert computed.logprobs is not None
    expected = torch.cat(read_logprobs(model, data)).detach().numpy()
    np.testing.assert_allclose(computed.logprobs, expected, atol=1e-3)

    await client.did("save_state", name="first")
    source = str(client.log.job_folder / "states" / "first")
    for name, borders in (("whole", [0, 24]), ("parts", [0, 8, 24])):
        await client.did("load_state", source=source, with_optimizer=True)
        for first, last in pairwise(borders):
            part = select_part(data, first, last)
            await client.did("forward_backward", data=part, loss="importance_sampling")
        await client.did("optim_step", adam=ADAM)
        await client.did("save_sampler", name=name)
    whole, parts = map(client.weights, ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    record = await client.until_job(lambda record: record.error)
    assert record.error
    assert record.error.kind is ErrorKind.SILENT_CLIENT


def read_logprobs(model: Any, data: Data) -> list[torch.Tensor]:
    parts = []
    ends = np.cumsum(data.lengths)[:-1]
    arrays = [np.split(array.astype(np.int64), ends) for array in (data.input_ids, data.targets)]
    for ids, targets in zip(*(map(torch.from_numpy, array) for array in arrays), strict=True):
        logprobs = model(ids[None]).logits[0].log_softmax(-1)
        parts.append(logprobs.gather(1, targets[:, None])[:, 0])
    return parts


def plain_loss(model: Any, data: Data, loss: str) -> torch.Tensor:
    logprobs = torch.cat(read_logprobs(model, data))
    weights, behavior = map(torch.tensor, (data.weights, data.behavior_logprobs))
    ratio = (logprobs - behavior).exp()
    clipped = ratio.clamp(0.8, 1.2)
    terms = {
        "cross_entropy": weights * logprobs,
        "importance_sampling": ratio * weights,
        "ppo": torch.minimum(ratio * weights, clipped * weights),
        "cispo": clipped.detach() * weights * logprobs,
    }
    return -terms[loss].sum()


async def test_a_state_is_saved_loaded_and_refused(client: Client) -> None:
    await client.begin(lora={"rank": 4})
    await client.take_steps(0, 1)
    await client.did("save_state", name="two")
    await client.did("save_sampler")
    (sampler,) = (client.log.job_folder / "samplers").iterdir()
    probes = Probes.model_validate_json((sampler / PROBES).read_bytes())
    assert sampler.name == "version-000002"
    assert len(probes.logprobs) == len(probes.token_ids) - 1
    await client.take_steps(2, 3)
    await client.did("save_sampler", name="four")
    source = client.log.job_folder / "states" / "two"
    await client.did("load_state", source=str(source), with_optimizer=True)
    await client.take_steps(2, 3)
    await client.has_weights("again", client.weights("four"))
    for do, values, reason in (
        ("save_state", {"name": "two"}, "exists"),
        ("load_state", {"source": str(client.folder)}, "no state"),
        ("refuse", {"why": "no such loss"}, "no such loss"),
    ):
        refused = await client.result(client.ask(do, **values))
        assert refused.is_users
        assert reason in refused.error
    await client.take_steps(4)

    # Where the checkpoint after a load is damaged, the weights cannot be made again.
    await client.did("load_state", source=str(source), with_optimizer=True)
    client.kill()
    shutil.rmtree(source)
    newest = max((client.log.job_folder / "checkpoints").iterdir())
    (newest / "state.json").write_text("damaged")
    client.start()
    record = await client.until_job(lambda record: record.error)
    assert record.error
    assert "must be loaded again" in record.error.message
