"""An adapter learns as plain torch does, and gives the same log-probs wherever it is applied."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from peft import set_peft_model_state_dict
from protocol import weights
from protocol.calls import Served
from protocol.exchange import connect
from protocol.messages import Probes
from protocol.operations import PROBES
from protocol.recipe import Lora, Model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from vllm.engine.arg_utils import AsyncEngineArgs

from services.chassis.deployment import Deployment
from services.chassis.parity import digest_prompts
from services.chassis.service import Service
from services.learner.training.lora import add_adapter, save_adapter
from services.learner.training.models import write_merged
from services.rollout.engine import Engine
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import EngineDied, ParityError, Sample
from services.rollout.scheduler import AsyncBatchingScheduler
from services.rollout.settings import EngineSettings
from tests.contract.call_client import a_call
from tests.contract.valkey_server import Server
from tests.engine.conftest import (
    APART,
    LONG_PROMPT,
    MAX_CONTEXT,
    PROMPT,
    begin_group,
    compute_logprobs,
    gap,
    sample_group,
    until_sampling,
)
from tests.engine.outputs import TOLERANCE, largest_gap, metrics_of
from tests.engine.plain_lora import adapt, adapter_of, trained_parameters
from tests.engine.plain_vapo import Learns, PlainVapo
from tests.engine.ranks import Ranks
from tests.engine.train_some_steps import samples_of_step, train
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
LORA = Lora(rank=4, alpha=8)
SAME = 1e-4  # nats: adapter or merged, learner or engine
FILE = "adapter_model.safetensors"


def with_adapter(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    add_adapter(model, LORA, "base", seed=0)
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    state = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    save_adapter(model, state, folder)
    return folder


@pytest.fixture(scope="module")
def everything(ranks: Ranks, folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of VAPO with every term that a loss can have, on two ranks."""
    out = tmp_path_factory.mktemp("lora") / "out"
    ranks.run(
        train,
        ranks=2,
        model=folders[0],
        out=out,
        save_at=2,
        zero_stage=3,
        micro_batch_tokens=120,
        recompute_activations=True,
        vapo=True,
        lora=LORA.model_dump(),
    )
    return out


def test_an_adapter_learns_as_in_plain_torch_and_the_reference_is_the_base(
    folders: list[Path], everything: Path, tmp_path: Path
) -> None:
    plain = PlainVapo(folders[0])
    first = save(with_adapter(folders[0]), tmp_path) / FILE
    adapt(plain.policy, first, LORA.alpha / LORA.rank)
    plain.learns_policy = Learns(trained_parameters(plain.policy))
    for step in range(3):
        plain.train(samples_of_step(step))
    learned = load_file(everything / FILE)
    # An adapter's product adds up in another order, and AdamW makes little gradients as large.
    assert largest_gap(learned, adapter_of(plain.policy)) <= 4 * TOLERANCE
    assert largest_gap(learned, load_file(first)) > 1e-3
    divergences = [metrics["divergence"] for metrics in metrics_of(everything)]
    assert divergences[2] > 3 * divergences[1] > 9 * divergences[0]  # ever further from the base
    checkpoint = next((everything / "checkpoint/policy").glob("*model_states.pt"))
    state = torch.load(checkpoint, weights_only=False)
    assert not any("base_layer" in name for name in state["module"])
    assert not state["frozen_param_fragments"]


def test_who_may_read_a_folder_may_read_the_weights_in_it(everything: Path) -> None:
    files = [*everything.rglob("*.safetensors")]
    assert {file.parent.name for file in files} == {"out", "critic", "merged"}
    for file in files:
        assert file.stat().st_mode & 0o777 == file.parent.stat().st_mode & 0o666, file


@pytest.fixture(scope="module")
def adapters(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of one model, as if they had learned, each with the merged model beside it."""
    root = tmp_path_factory.mktemp("adapters")
    adapters = []
    for seed in range(2):
        model = with_adapter(folders[0])
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.05)
        adapters.append(save(model, root / f"adapter-{seed}"))
        write_merged(folders[0], adapters[-1], "float32", merged(adapters[-1]))
    return adapters


def merged(adapter: Path) -> Path:
    return adapter.with_name(f"{adapter.name}-merged")


@pytest.fixture(scope="module")
async def adapted(
    folders: list[Path], adapters: list[Path], settings: EngineSettings
) -> AsyncIterator[Engine]:
    """With the scheduler that vLLM uses on GPUs; the other engine has that of CPUs."""
    configure = AsyncEngineArgs.create_engine_config

    def configure_as_on_gpus(*arguments: Any, **options: Any) -> Any:
        config = configure(*arguments, **options)
        config.scheduler_config.async_scheduling = True
        return config

    with_rank = replace(settings, lora_rank=LORA.rank)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AsyncEngineArgs, "create_engine_config", configure_as_on_gpus)
        engine = await Engine.start(InlinePrompts(), adapters[1], "1.0", with_rank, folders[0])
    assert engine.llm.vllm_config.scheduler_config.scheduler_cls is AsyncBatchingScheduler
    yield engine
    engine.shut_down()


async def test_adapter_and_merged_weights_give_the_same_logprobs_in_learner_and_engine(
    engine: Engine, adapted: Engine, folders: list[Path], adapters: list[Path]
) -> None:
    for adapter in (adapters[1], adapters[0]):  # it was started with the former
        await adapted.load(adapter, "1.1", keep_kv=False)
        await engine.load(merged(adapter), "1.1", keep_kv=False)
        for prompt in (PROMPT, LONG_PROMPT):
            groups = [
                await sample_group(
                    each,
                    8,
                    prompt=prompt,
                )
                for each in (adapted, engine)
            ]
            for sample, twin in zip(*groups, strict=True):
                assert sample.token_ids.tolist() == twin.token_ids.tolist()
                assert sample.spans == twin.spans
                assert gap(merged(adapter), twin, prompt) <= SAME
                assert gap(merged(adapter), sample, prompt) <= SAME
                assert gap(folders[0], sample, prompt) > 1000 * SAME
        (sample,) = await sample_group(adapted)
        assert learners_gap(folders[0], adapter, sample) <= SAME


def learners_gap(folder: Path, adapter: Path, sample: Sample) -> float:
    """To the learner's own model with an adapter."""
    model = with_adapter(folder)
    set_peft_model_state_dict(model, load_file(adapter / FILE))
    ids = torch.tensor([[*PROMPT, *sample.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(PROMPT) :, None])[:, 0]
    return float(np.abs(expected.numpy() - sample.behavior_logprobs).max())


@pytest.mark.parametrize("keep_kv", [False, True])
async def test_a_sync_in_the_middle_goes_on_under_the_new_adapter(
    adapted: Engine, adapters: list[Path], *, keep_kv: bool
) -> None:
    await adapted.load(adapters[0], "1.2", keep_kv=False)
    group = begin_group(adapted, 2, max_tokens=800)
    await until_sampling(adapted, 2)
    await adapted.load(adapters[1], "1.3", keep_kv=keep_kv)
    old, new = map(merged, adapters)
    for sample in await group:
        edge = sample.spans[0].end
        assert [span.version for span in sample.spans] == [2, 3]
        assert gap(old, sample, end=edge) <= SAME
        assert keep_kv or gap(new, sample, start=edge) <= SAME
        assert gap(old, sample, start=edge) > APART


async def test_one_engine_answers_as_a_sessions_samplers_and_as_the_model_they_are_for(
    adapted: Engine, adapters: list[Path], folders: list[Path], tmp_path: Path
) -> None:
    async def start(folder: Path, label: str, *_: object) -> Engine:
        await adapted.load(folder, label, keep_kv=False)
        return adapted

    base = Model(
        path=str(folders[0]),
        dtype="float32",
        prompt_template="{prompt}",
    )
    model = base.model_copy(update={"lora": LORA, "max_context": MAX_CONTEXT})
    rendered = digest_prompts((), None, adapted.tokenizer, {})

    def sampler(version: int, adapter: Path, learners: Path) -> Served:
        """A saved adapter beside the log-probs of the learner's model."""
        folder = shutil.copytree(adapter, tmp_path / f"version-{version}")
        probes = Probes(
            tasks=(),
            rendered=rendered,
            token_ids=tuple(PROMPT),
            most=1e-4,
            logprobs=tuple(compute_logprobs(learners, PROMPT[:1], PROMPT[1:]).tolist()),
        )
        (folder / PROBES).write_text(probes.model_dump_json())
        weights.seal(folder)
        return Served(
            name=folder.name,
            folder=str(folder),
            version=version,
            job_id="job",
            base=base.path,
            attempt=1,
            model=model,
        )

    first, second = (sampler(n, adapter, merged(adapter)) for n, adapter in enumerate(adapters))
    other = sampler(2, adapters[1], merged(adapters[0]))
    plain = Served(name="base", folder=base.path, model=base)
    models = {
        "version-0": merged(adapters[0]),
        "version-1": merged(adapters[1]),
        "base": folders[0],
    }
    with Server(tmp_path) as server:
        values = {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path), "WEIR_PORT": "0"}
        async with connect(server.url, me="rollout", patience_s=5) as exchange:
            service = Service("rollout", Deployment.from_environment(values), exchange)
            follower = PolicyFollower(service, start)
            for served in (first, second, plain, first):
                await follower.serve(served)
                engine = await follower.answering_engine(served.key)
                call = a_call(token_ids=PROMPT, sampling={"prompt_logprobs": True})
                (piece,) = [piece async for piece in engine.answer(call, PROMPT, 1)]
                expected = compute_logprobs(models[served.name], PROMPT[:1], PROMPT[1:])
                assert piece.prompt_logprobs is not None
                logprobs = np.array(piece.prompt_logprobs[1:], dtype=float)
                assert np.abs(logprobs - expected).max() <= 1e-4
            with pytest.raises(ParityError, match="gap"):
                await follower.serve(other)
            assert not follower.may_answer(other.key)
            reports = [(each.version, each.agrees) for each in service.activity.parity]
            assert reports == [(0, True), (1, True), (0, True), (2, False)]


async def test_a_killed_engine_is_noticed_at_work_and_at_rest(
    adapted: Engine, adapters: list[Path], engine: Engine
) -> None:
    """The last test of this module, whose engine it kills."""
    children = psutil.Process().children(recursive=True)
    cores = [process for process in children if "EngineCore" in process.name()]
    core = max(cores, key=psutil.Process.create_time)
    working = begin_group(adapted, 1)
    await until_sampling(adapted, 1)
    assert not adapted.has_died
    core.kill()
    with pytest.raises(EngineDied):
        await asyncio.wait_for(working, 60)
    assert adapted.has_died
    assert not engine.has_died
    with pytest.raises(EngineDied):
        await adapted.load(adapters[1], "1.4", keep_kv=False)
    with pytest.raises(EngineDied):
        await adapted.score(PROMPT, {})
