"""Which weights a running engine can take, and the settings that it keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol import weights
from protocol.calls import Served
from protocol.messages import PolicyVersion
from protocol.recipe import Lora, Model
from protocol.weights import WeightsError, WeightsGone
from safetensors.numpy import save_file

from services.chassis.deployment import DeploymentError
from services.rollout.fetching import shape_of, verified_shape
from services.rollout.policy_sync import Serving, serving_of, why_unfit
from services.rollout.settings import EngineSettings
from tests.builders import a_recipe

SETTINGS = EngineSettings(dtype="float32", max_context=64)


def write_folder(folder: Path, *, hidden: int = 4, value: float = 0.0, **config: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": "qwen2", "hidden_size": hidden, **config}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text("{}")
    tensors = {"embed.weight": np.full((3, hidden), value, dtype=np.float32)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def a_model(folder: Path, **changes: Any) -> Path:
    write_folder(folder, **changes)
    return folder


def an_adapter(folder: Path, *, rank: int, value: float = 0.0) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    save_file({"q.lora_A.weight": np.full((rank, 4), value)}, folder / "adapter_model.safetensors")
    return folder


def serving(folder: Path) -> Serving:
    policy = PolicyVersion(job_id="job", attempt=1, number=3, folder="f", digest="d")
    return Serving(policy, shape_of(folder), SETTINGS)


@pytest.fixture
def now(tmp_path: Path) -> Serving:
    return serving(a_model(tmp_path / "now"))


def test_an_engine_takes_weights_of_its_own_shape(now: Serving, tmp_path: Path) -> None:
    later = a_model(tmp_path / "later", value=1.0, transformers_version="9.9", dtype="float16")
    assert why_unfit(now, serving(later)) is None
    (later / "model.safetensors").rename(later / "model-00001-of-00001.safetensors")
    (later / "model.safetensors.index.json").write_text("{}")
    assert why_unfit(now, serving(later)) is None


def test_another_shape_or_setting_needs_another_engine_and_says_where(
    now: Serving, tmp_path: Path
) -> None:
    reason = str(why_unfit(now, serving(a_model(tmp_path / "wider", hidden=8))))
    assert "config hidden_size: 4 became 8" in reason
    assert "tensor embed.weight: (3, 4) became (3, 8)" in reason
    other = a_model(tmp_path / "other")
    (other / "tokenizer.json").write_text('{"version": 2}')
    assert "file tokenizer.json: " in str(why_unfit(now, serving(other)))
    settings = replace(SETTINGS, max_context=128)
    assert "128" in str(why_unfit(now, replace(now, settings=settings)))


def test_an_adapter_follows_one_of_its_own_shape_for_the_same_model(tmp_path: Path) -> None:
    first = serving(an_adapter(tmp_path / "first", rank=2))
    second = serving(an_adapter(tmp_path / "second", rank=2, value=1.0))
    assert why_unfit(first, second) is None
    wider = why_unfit(first, serving(an_adapter(tmp_path / "wider", rank=4)))
    assert "config r: 2 became 4" in str(wider)
    policy = second.policy.model_copy(update={"base": "job/2.base", "base_digest": "other"})
    assert why_unfit(first, replace(second, policy=policy))


def test_the_adapter_that_a_job_has_made_goes_into_the_engine_of_that_job(tmp_path: Path) -> None:
    adapter = an_adapter(tmp_path / "adapter", rank=2)
    model = Model(path="p", dtype="float32", max_context=64, lora=Lora(rank=2))
    served = Served(name="job", job_id="job", folder=str(adapter), base="/base", model=model)
    policy = serving(adapter).policy.model_copy(update={"base": "b", "base_digest": "b's"})
    last = Serving(policy, shape_of(adapter), EngineSettings.from_environment(model))
    assert why_unfit(last, serving_of(served, last)) is None
    others = served.model_copy(update={"job_id": "another"})
    assert why_unfit(last, serving_of(others, last)) is not None


def test_a_shape_is_read_only_from_what_was_announced(tmp_path: Path) -> None:
    digest = weights.write(tmp_path, "job/1.0", lambda target: write_folder(target))
    folder = tmp_path / "job/1.0"
    assert verified_shape(folder, digest) == shape_of(folder)
    with pytest.raises(WeightsError, match="announced"):
        verified_shape(folder, "0" * 64)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(WeightsError, match="damaged"):
        verified_shape(folder, digest)
    shutil.rmtree(folder)
    with pytest.raises(WeightsGone):
        verified_shape(folder, digest)


def test_settings_come_from_the_recipe_and_the_environment() -> None:
    model = a_recipe(model={"dtype": "bfloat16", "max_context": 100}).model
    environment = {"WEIR_ROLLOUT_KV_CACHE_MIB": "64", "WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE": "2"}
    settings = EngineSettings.from_environment(model, environment)
    assert (settings.dtype, settings.max_context) == ("bfloat16", 100)
    assert (settings.kv_cache_bytes, settings.num_gpus) == (64 * 2**20, 2)
    assert EngineSettings.from_environment(model, {}).kv_cache_bytes is None
    for text in ("many", "-1", "1.5"):
        with pytest.raises(DeploymentError, match="WEIR_ROLLOUT_MAX_SEQUENCES"):
            EngineSettings.from_environment(model, {"WEIR_ROLLOUT_MAX_SEQUENCES": text})
