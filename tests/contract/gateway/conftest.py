"""The real gateway process on a real Valkey server, once for all tests in here."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.contract.gateway.stack import KEY, Client, Stack, a_gateway, a_model
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
def http(stack: Stack) -> Iterator[Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def a_models_root(folder: Path) -> None:
    """Good models, and one of every kind that must be refused."""
    models = folder / "models"
    outside = a_model(folder / "outside")
    for name in (
        "tiny",
        "examples/arithmetic/base-model",
        "chat",
        "pickled",
        "no-config",
        "no-type",
        "torn",
        "leak",
        "short",
    ):
        a_model(models / name)
    (models / "chat/chat_template.jinja").write_text("{{ messages }}")
    (models / "short/config.json").write_text(
        '{"model_type": "llama", "max_position_embeddings": 32}'
    )
    (models / "pickled/model.safetensors").rename(models / "pickled/pytorch_model.bin")
    (models / "no-config/config.json").unlink()
    (models / "no-type/config.json").write_text("{}")
    (models / "torn/config.json").write_text('{"model_type"')
    (models / "escape").symlink_to(outside)
    (models / "leak/model.safetensors").unlink()
    (models / "leak/model.safetensors").symlink_to(outside / "model.safetensors")
