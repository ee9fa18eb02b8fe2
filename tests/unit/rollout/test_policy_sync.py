"""The weights that a running engine can load, and the settings that it keeps."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol import weights
from protocol.calls import Served
from protocol.recipe import Lora, Model
from protocol.weights import WeightsError, WeightsGone
from safetensors.numpy import save_file

from services.chassis.deployment import DeploymentError
from services.rollout.fetching import read_shape, verified_shape
from services.rollout.policy_sync import Serving, incompatibility, read_serving
from services.rollout.settings import EngineSettings
from tests.builders import a_policy, a_recipe

SETTINGS = EngineSettings(dtype="float32", max_context=64)


def write_folder(
    folder: Path,
    *,
    hidden: int = 4,
    value: float = 0.0,
    **config: object,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": "qwen2", "hidden_size": hidden, **config}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text("{}")
    embedding = np.full((3, hidden), value, dtype=np.float32)
    tensors = {"embed.weight": embedding}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(folder: Path, *, rank: int, value: float = 0.0) -> None:
    folder.mkdir()
    config = {"r": rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {"q.lora_A.weight": np.full((rank, 4), value)}
    save_file(tensors, folder / "adapter_model.safetensors")


def a_serving(folder: Path) -> Serving:
    return Serving(a_policy(3), read_shape(folder), SETTINGS)


def a_model(folder: Path, **changes: Any) -> Serving:
    write_folder(folder, **changes)
    return a_serving(folder)


def an_adapter(folder: Path, **changes: Any) -> Serving:
    write_adapter(folder, **changes)
    return a_serving(folder)


def change_base(serving: Serving, digest: str) -> Serving:
    changes = {"base": "job/2.base", "base_digest": digest}
    policy = serving.policy.model_copy(update=changes)
    return replace(serving, policy=policy)


def mismatch(current: Serving, new: Serving) -> str:
    reason = incompatibility(current, new)
    assert reason is not None
    return reason


@pytest.fixture
def current(tmp_path: Path) -> Serving:
    return a_model(tmp_path / "current")


def test_an_engine_loads_weights_of_its_own_shape(current: Serving, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    new = a_model(folder, value=1.0, transformers_version="9.9", dtype="float16")
    assert incompatibility(current, new) is None
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    assert incompatibility(current, a_serving(folder)) is None


def test_another_shape_or_setting_needs_another_engine(current: Serving, tmp_path: Path) -> None:
    wider = a_model(tmp_path / "wider", hidden=8)
    reason = mismatch(current, wider)
    assert "config hidden_size: 4 became 8" in reason
    assert "tensor embed.weight: (3, 4) became (3, 8)" in reason
    folder = tmp_path / "other"
    write_folder(folder)
    (folder / "tokenizer.json").write_text('{"version": 2}')
    reason = mismatch(current, a_serving(folder))
    assert "file tokenizer.json: " in reason
    settings = replace(SETTINGS, max_context=128)
    longer = replace(current, settings=settings)
    assert "128" in mismatch(current, longer)


def test_an_adapter_can_follow_one_of_its_own_shape_and_base(tmp_path: Path) -> None:
    first = an_adapter(tmp_path / "first", rank=2)
    second = an_adapter(tmp_path / "second", rank=2, value=1.0)
    assert incompatibility(first, second) is None
    wider = an_adapter(tmp_path / "wider", rank=4)
    assert "config r: 2 became 4" in mismatch(first, wider)
    assert mismatch(first, change_base(second, "other")) == "its adapter is for another model"


def test_an_adapter_of_a_job_fits_the_engine_of_that_job(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    adapter = an_adapter(folder, rank=2)
    model = Model(
        path="p",
        dtype="float32",
        max_context=64,
        lora=Lora(rank=2),
    )
    served = Served(
        name="job",
        job_id="job",
        folder=str(folder),
        base="/base",
        model=model,
    )
    settings = EngineSettings.from_environment(model)
    last = replace(change_base(adapter, "base"), settings=settings)
    assert incompatibility(last, read_serving(served, last)) is None
    foreign = served.model_copy(update={"job_id": "another"})
    assert mismatch(last, read_serving(foreign, last))


def test_a_shape_is_read_only_from_announced_weights(tmp_path: Path) -> None:
    digest = weights.write(tmp_path, "job/1.0", lambda target: write_folder(target))
    folder = tmp_path / "job/1.0"
    assert verified_shape(folder, digest) == read_shape(folder)
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
    settings = EngineSettings("bfloat16", 100)
    assert EngineSettings.from_environment(model, {}) == settings
    changed = replace(settings, kv_cache_bytes=64 * 2**20, num_gpus=2)
    assert EngineSettings.from_environment(model, environment) == changed


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_wrong_setting_is_refused(text: str) -> None:
    environment = {"WEIR_ROLLOUT_MAX_SEQUENCES": text}
    with pytest.raises(DeploymentError, match="WEIR_ROLLOUT_MAX_SEQUENCES"):
        EngineSettings.from_environment(a_recipe().model, environment)
