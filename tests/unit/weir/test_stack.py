"""Which gateway the command finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.stack import NoStack, Stack, connected, find_stack, model_for


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


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"WEIR_API_KEY": "own", "WEIR_API_KEYS": "a"}, "own"),
        ({"WEIR_API_KEY": "", "WEIR_API_KEY_FILE": "one", "WEIR_API_KEYS": "a"}, "from a file"),
        ({"WEIR_API_KEYS": "", "WEIR_API_KEYS_FILE": "many"}, "first"),
        ({"WEIR_API_KEYS_FILE": "lines"}, "plain"),
    ],
)
def test_a_key_may_be_in_a_file_or_among_those_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("from a file\n")
    Path("many").write_text(" first\nsecond,third\n")
    Path("lines").write_text(f"alice:read:sha256:{'0' * 64}\nplain\nother\n")
    assert find_stack({"WEIR_URL": "http://u"} | given) == Stack("http://u", key, is_local=False)


THERE = {"WEIR_URL": "http://there"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WEIR_URL": "nonsense"}, "WEIR_URL='nonsense'"),
        ({"WEIR_URL": "http://[::"}, "WEIR_URL='http://"),
        (THERE | {"WEIR_API_KEYS": " ,"}, "WEIR_API_KEY is not"),
        (THERE | {"WEIR_API_KEYS": "a:read:sha256:00"}, "WEIR_API_KEY is not"),
        (THERE | {"WEIR_API_KEY": "ключ"}, "WEIR_API_KEY holds"),
        (THERE | {"WEIR_API_KEY_FILE": "absent"}, "absent"),
        ({"WEIR_HOME": "elsewhere"}, "elsewhere/stack.json.*weir up"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], words: str) -> None:
    with pytest.raises(NoStack, match=words):
        find_stack(variables)


def test_a_connection_that_the_environment_does_not_allow_is_told_with_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "::")
    with (
        pytest.raises(NoStack, match="HTTP_PROXY"),
        connected(Stack("http://u", "k", is_local=False)),
    ):
        pass


def test_only_a_local_stack_gets_a_folder_of_this_machine(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert model_for(Stack("u", "k", is_local=True), folder) == str(tmp_path.resolve())
    assert model_for(Stack("u", "k", is_local=False), "models/tiny") == "models/tiny"
    assert model_for(Stack("u", "k", is_local=True), "Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
