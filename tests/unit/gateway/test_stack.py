"""Which gateway the command finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.gateway.stack import NoStack, Stack, find_stack, model_for


def a_home(folder: Path, text: str) -> dict[str, str]:
    (folder / "stack.json").write_text(text)
    return {"WEIR_HOME": str(folder)}


def test_the_environment_goes_before_the_local_stack(tmp_path: Path) -> None:
    home = a_home(tmp_path, json.dumps({"url": "http://here", "api_key": "k", "pids": []}))
    assert find_stack(home) == Stack("http://here", "k", is_local=True)
    there = home | {"WEIR_URL": "http://there", "WEIR_API_KEY": "l"}
    assert find_stack(there) == Stack("http://there", "l", is_local=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "damaged"), ("[]", "damaged"), ('{"url": "http://here"}', "api_key")],
)
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NoStack, match=rf"{message}.*weir down"):
        find_stack(a_home(tmp_path, text))


def test_half_of_an_address_is_refused() -> None:
    with pytest.raises(NoStack, match="WEIR_API_KEY is not"):
        find_stack({"WEIR_URL": "http://there"})


def test_only_a_local_stack_gets_a_folder_of_this_machine(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert model_for(Stack("u", "k", is_local=True), folder) == str(tmp_path.resolve())
    assert model_for(Stack("u", "k", is_local=False), "models/tiny") == "models/tiny"
    assert model_for(Stack("u", "k", is_local=True), "Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
