"""What only a GPU shows: skipped without one; WEIR_REHEARSE=1 rehearses it small on a CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.learner.planning.footprint import BUILT_IN, ModelShape
from tests.architecture.project import ROOT

REHEARSES = os.environ.get("WEIR_REHEARSE") == "1"
_TINY = ModelShape(64, 2, 4, 2, 16, 128, 512, 32768, attention_bias=True)
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _needs_a_gpu(request: pytest.FixtureRequest) -> None:
    request.applymarker(pytest.mark.timeout(900))
    if not torch.cuda.is_available() and not REHEARSES:
        pytest.skip("needs a GPU; WEIR_REHEARSE=1 tries it small on the CPU, and measures nothing")


@dataclass(frozen=True)
class Machine:
    """How large what a test makes may be."""

    folder: Path
    tiny: ModelShape = _TINY

    def shape(self, name: str) -> ModelShape:
        return _TINY if REHEARSES else BUILT_IN[name]

    def tokens(self, number: int) -> int:
        return number // 64 if REHEARSES else number

    def model(self, name: str) -> Path:
        folder = self.folder / name.replace("/", "-")
        if not folder.exists():
            write_model(self.shape(name), folder)
        return folder


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("models"))


def write_model(shape: ModelShape, folder: Path) -> None:
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            Qwen2ForCausalLM(config).save_pretrained(folder)
        finally:
            torch.set_default_dtype(torch.float32)


def run_module(module: str, *arguments: str, **environment: str) -> str:
    """What a module prints in a process of its own, which gives back all of the memory."""
    paths = os.pathsep.join([str(ROOT / "proto"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="session")
def measure(machine: Machine) -> Callable[..., Json]:
    def run(what: str, **settings: Any) -> Json:
        model = settings.pop("model", None)
        if model is not None:
            settings |= {"model": str(machine.model(model)), "shape": vars(machine.shape(model))}
        printed = run_module("tests.gpu.measure", what, json.dumps(settings))
        measured: Json = json.loads(printed.splitlines()[-1])
        print(what, settings.get("recipe", ""), measured)
        return measured

    return run
