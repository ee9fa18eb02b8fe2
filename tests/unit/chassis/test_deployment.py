"""Settings come from the environment, and a wrong one is named."""

import sys
from pathlib import Path

import pytest

from services.chassis.deployment import Deployment, DeploymentError, import_extensions
from tests.tables import table

NEEDED = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/data", "WEIR_PORT": "8000"}


def test_defaults_need_only_an_address_a_folder_and_a_port() -> None:
    deployment = Deployment.from_environment(NEEDED)
    assert deployment.files_dir == Path("/data/files")
    assert (deployment.port, deployment.model_hub, deployment.api_keys) == (8000, False, ())


@table(
    """
    name               | value
    WEIR_PORT          | http
    WEIR_DATA_DIR      | /data[1]
    WEIR_MODEL_HUB     | yes
    WEIR_HEARTBEAT_S   | nan
    WEIR_CLAIM_IDLE_S  | 2
    WEIR_LOG_LEVEL     | loud
    WEIR_API_KEYS_FILE | /nowhere
    WEIR_API_KEYS_FILE | /dev/null
""",
    *((name, "") for name in NEEDED),
)
def test_a_variable_that_is_missing_or_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(DeploymentError, match=name):
        Deployment.from_environment({**NEEDED, name: value})


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    empty = {"WEIR_HEARTBEAT_S": "", "WEIR_MODEL_HUB": "", "WEIR_API_KEYS_FILE": ""}
    assert Deployment.from_environment({**NEEDED, **empty}) == Deployment.from_environment(NEEDED)


def test_a_list_may_be_in_a_file_and_not_in_a_variable_too(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    variables = {**NEEDED, "WEIR_API_KEYS_FILE": str(path)}
    for text in (" a,b\n", "a\n\n b\n"):
        path.write_text(text)
        assert Deployment.from_environment(variables).api_keys == ("a", "b")
    with pytest.raises(DeploymentError, match="both"):
        Deployment.from_environment({**variables, "WEIR_API_KEYS": "c"})


@table("""
    url                 | password   | whole
    redis://h:6379/0    | p@ss/w:rd% | redis://:p%40ss%2Fw%3Ard%25@h:6379/0
    rediss://[::1]:6379 | p          | rediss://:p@[::1]:6379
    redis://user@h/0    | p          | redis://user:p@h/0
    redis://:folders@h  |            | redis://:folders@h
""")
def test_the_password_goes_into_the_url_of_redis(url: str, password: str, whole: str) -> None:
    variables = {**NEEDED, "WEIR_REDIS_URL": url, "WEIR_REDIS_PASSWORD": password}
    assert Deployment.from_environment(variables).redis_url == whole


@table("""
    text                                      | hidden
    '/data/jobs/a/log': full                  | 'WEIR_DATA_DIR/jobs/a/log': full
    below /data/memory; /data; /database      | below WEIR_MEMORY_DIR; WEIR_DATA_DIR; /database
    no /models/m/config.json                  | no WEIR_MODEL_ROOTS/m/config.json
    [Errno 2] No such file: '/usr/lib/x/y.so' | [Errno 2] No such file: '…/y.so'
    POST /v1/tmp/x http://h/usr/lib           | POST /v1/tmp/x http://h/usr/lib
    /dev/shm is full; 1/2 of train/usr/x      | /dev/shm is full; 1/2 of train/usr/x
""")
def test_people_are_not_shown_where_folders_lie(text: str, hidden: str) -> None:
    folders = {
        "WEIR_DATA_DIR": "/data",
        "WEIR_MEMORY_DIR": "/data/memory",
        "WEIR_MODEL_ROOTS": "/:/models",
    }
    assert Deployment.from_environment({**NEEDED, **folders}).hide_paths(text) == hidden


def test_two_passwords_are_one_too_many() -> None:
    variables = {**NEEDED, "WEIR_REDIS_URL": "redis://:folders@h", "WEIR_REDIS_PASSWORD": "p"}
    with pytest.raises(DeploymentError, match="WEIR_REDIS_PASSWORD") as refused:
        Deployment.from_environment(variables)
    assert "folders" not in str(refused.value)


def test_extensions_are_imported_and_one_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good_lab.py").write_text("")
    (tmp_path / "bad_lab.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    import_extensions("WEIR_EXTENSIONS", ["good_lab"])
    assert "good_lab" in sys.modules
    for name, reason in (("bad_lab", "ZeroDivisionError"), ("no_lab", "ModuleNotFoundError")):
        with pytest.raises(DeploymentError, match=f"WEIR_EXTENSIONS: '{name}' .*{reason}"):
            import_extensions("WEIR_EXTENSIONS", [name])
