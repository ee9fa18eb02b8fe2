"""The real gateway process on a real Valkey server, once for all tests in here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.contract.gateway.stack import KEY, Stack, a_gateway
from tests.contract.valkey_server import Server


@pytest.fixture(scope="session")
def gateway_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that keeps what other tests' fixtures would empty."""
    with Server(tmp_path_factory.mktemp("gateway-valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def stack(gateway_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gateway")
    a_models_root(folder)
    with a_gateway(gateway_server, folder) as stack:
        yield stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def a_models_root(folder: Path) -> None:
    """One good model, and one of every kind that must be refused."""
    models = folder / "models"
    outside = _a_folder(folder / "outside", "config.json", "model.safetensors")
    _a_folder(models / "tiny", "config.json", "model.safetensors")
    _a_folder(models / "examples/arithmetic/base-model", "config.json", "model.safetensors")
    chat = _a_folder(models / "chat", "config.json", "model.safetensors")
    (chat / "chat_template.jinja").write_text("{{ messages }}")
    _a_folder(models / "pickled", "config.json", "pytorch_model.bin")
    _a_folder(models / "no-config", "model.safetensors")
    (models / "escape").symlink_to(outside)
    leak = _a_folder(models / "leak", "config.json")
    (leak / "model.safetensors").symlink_to(outside / "model.safetensors")


def _a_folder(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder
