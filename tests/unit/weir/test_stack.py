"""The gateway that the command finds."""

import json
from pathlib import Path

import pytest

from tests.tables import table
from weir.stack import NoStack, Stack, find_stack, model_name


def test_the_environment_goes_before_the_local_stack(tmp_path: Path) -> None:
    stack = {"url": "http://here", "api_key": "k", "pids": []}
    (tmp_path / "stack.json").write_text(json.dumps(stack))
    home = {"WEIR_HOME": str(tmp_path)}
    assert find_stack(home) == Stack("http://here", "k", is_local=True)
    remote = home | {"WEIR_URL": "http://there", "WEIR_API_KEY": "l"}
    assert find_stack(remote) == Stack("http://there", "l", is_local=False)


def test_a_stack_that_was_killed_is_reported(tmp_path: Path) -> None:
    stack = {"url": "http://here", "api_key": "k", "pid": 2**22 + 1}
    (tmp_path / "stack.json").write_text(json.dumps(stack))
    with pytest.raises(NoStack, match=r"process 4194305 is gone.*weir up"):
        find_stack({"WEIR_HOME": str(tmp_path)})


@table("""
    text                   | message
    {                      | damaged
    []                     | damaged
    {"url": "http://here"} | api_key
""")
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(NoStack, match=rf"{message}.*weir down"):
        find_stack({"WEIR_HOME": str(tmp_path)})


@table("""
    variables                                                              | key
    {"WEIR_API_KEY": "own", "WEIR_API_KEYS": "a"}                          | own
    {"WEIR_API_KEY": "", "WEIR_API_KEY_FILE": "one", "WEIR_API_KEYS": "a"} | from a file
    {"WEIR_API_KEYS": "", "WEIR_API_KEYS_FILE": "many"}                    | first
    {"WEIR_API_KEYS_FILE": "lines"}                                        | plain
""")
def test_a_key_may_be_in_a_file_or_among_those_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("from a file\n")
    Path("many").write_text(" first\nsecond,third\n")
    Path("lines").write_text(f"alice:read:sha256:{'0' * 64}\nplain\nother\n")
    stack = find_stack({"WEIR_URL": "http://u", **variables})
    assert stack == Stack("http://u", key, is_local=False)


REMOTE = {"WEIR_URL": "http://there"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WEIR_URL": "nonsense"}, "WEIR_URL='nonsense'"),
        ({"WEIR_URL": "http://[::"}, "WEIR_URL='http://"),
        (REMOTE | {"WEIR_API_KEYS": " ,"}, "WEIR_API_KEY is not"),
        (REMOTE | {"WEIR_API_KEYS": "a:read:sha256:00"}, "WEIR_API_KEY is not"),
        (REMOTE | {"WEIR_API_KEY": "ключ"}, "WEIR_API_KEY has"),
        (REMOTE | {"WEIR_API_KEY_FILE": "absent"}, "absent"),
        ({"WEIR_HOME": "elsewhere"}, "elsewhere/stack.json.*weir up"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], words: str) -> None:
    with pytest.raises(NoStack, match=words):
        find_stack(variables)


def test_only_a_local_stack_gets_a_folder_of_this_machine(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert model_name(Stack("u", "k", is_local=True), folder) == str(tmp_path.resolve())
    assert model_name(Stack("u", "k", is_local=False), "models/tiny") == "models/tiny"
    assert model_name(Stack("u", "k", is_local=True), "Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
