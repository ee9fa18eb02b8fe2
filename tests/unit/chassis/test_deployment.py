"""What the environment must say, and what it is told when it does not."""

import math
import sys
from pathlib import Path

import pytest

from services.chassis.deployment import Deployment, DeploymentError

NEEDED = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/data", "WEIR_PORT": "8000"}


def test_defaults_need_only_an_address_a_folder_and_a_port() -> None:
    deployment = Deployment.from_environment(NEEDED)
    assert deployment.port == 8000
    assert deployment.files_dir == Path("/data/files")
    assert deployment.job_dir("j") == Path("/data/jobs/j")
    assert deployment.model_hub is False
    assert deployment.keep_samples_bytes == 10 * 2**30
    assert deployment.keep_samples_days == math.inf
    assert deployment.api_keys == ()


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_missing_variable_is_named(name: str) -> None:
    environment = {key: value for key, value in NEEDED.items() if key != name}
    with pytest.raises(DeploymentError, match=name):
        Deployment.from_environment(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEIR_PORT", "http"),
        ("WEIR_DATA_DIR", "/data[1]"),
        ("WEIR_MODEL_HUB", "yes"),
        ("WEIR_HEARTBEAT_S", "nan"),
        ("WEIR_CLAIM_IDLE_S", "2"),
        ("WEIR_LOG_LEVEL", "loud"),
        ("WEIR_KEEP_SAMPLES_BYTES", "10g"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(DeploymentError, match=name):
        Deployment.from_environment({**NEEDED, name: value})


def test_lists_are_split() -> None:
    deployment = Deployment.from_environment(
        {**NEEDED, "WEIR_API_KEYS": "a, b,", "WEIR_MODEL_ROOTS": "/m:/n"}
    )
    assert deployment.api_keys == ("a", "b")
    assert deployment.model_roots == (Path("/m"), Path("/n"))


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    empty = {"WEIR_HEARTBEAT_S": "", "WEIR_MODEL_HUB": "", "WEIR_API_KEYS_FILE": ""}
    assert Deployment.from_environment({**NEEDED, **empty}) == Deployment.from_environment(NEEDED)
    with pytest.raises(DeploymentError, match="WEIR_PORT"):
        Deployment.from_environment({**NEEDED, "WEIR_PORT": ""})


def test_a_variable_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text in (" a,b\n", "a\n\n b\n"):
        path.write_text(text)
        deployment = Deployment.from_environment({**NEEDED, "WEIR_API_KEYS_FILE": str(path)})
        assert deployment.api_keys == ("a", "b")


def test_a_file_that_does_not_say_it_is_named_with_its_variable(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    given = {**NEEDED, "WEIR_API_KEYS_FILE": str(path)}
    with pytest.raises(DeploymentError, match=f"WEIR_API_KEYS_FILE='{path}' cannot"):
        Deployment.from_environment(given)
    path.write_text("\n")
    with pytest.raises(DeploymentError, match=f"WEIR_API_KEYS_FILE='{path}' is empty"):
        Deployment.from_environment(given)
    with pytest.raises(DeploymentError, match="both"):
        Deployment.from_environment({**given, "WEIR_API_KEYS": "c"})


@pytest.mark.parametrize(
    ("url", "password", "whole"),
    [
        ("redis://h:6379/0", "p@ss/w:rd%", "redis://:p%40ss%2Fw%3Ard%25@h:6379/0"),
        ("rediss://[::1]:6379", "p", "rediss://:p@[::1]:6379"),
        ("redis://:own@h", "", "redis://:own@h"),
    ],
)
def test_the_password_goes_into_the_url_of_redis(url: str, password: str, whole: str) -> None:
    given = {**NEEDED, "WEIR_REDIS_URL": url, "WEIR_REDIS_PASSWORD": password}
    assert Deployment.from_environment(given).redis_url == whole


def test_two_passwords_are_one_too_many() -> None:
    given = {**NEEDED, "WEIR_REDIS_URL": "redis://:own@h", "WEIR_REDIS_PASSWORD": "p"}
    with pytest.raises(DeploymentError, match="WEIR_REDIS_PASSWORD") as refused:
        Deployment.from_environment(given)
    assert "own" not in str(refused.value)


def test_extensions_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_lab.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    Deployment.from_environment({**NEEDED, "WEIR_EXTENSIONS": "first_lab, json"}).load_extensions()
    assert "first_lab" in sys.modules


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_an_extension_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "second_lab.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    deployment = Deployment.from_environment({**NEEDED, "WEIR_EXTENSIONS": "second_lab"})
    with pytest.raises(DeploymentError, match=f"WEIR_EXTENSIONS: 'second_lab' .*{reason}"):
        deployment.load_extensions()
