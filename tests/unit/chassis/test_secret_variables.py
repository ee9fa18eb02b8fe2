"""Secrets in variables: which they are, and that neither /proc nor a child shows them any more."""

import json
import os
import subprocess
import sys
from pathlib import Path

from services.chassis.secret_variables import is_secret
from tests.tables import table


@table("""
    name                   | text                      | is_one
    WEIR_API_KEYS          | k                         | True
    WEIR_ENVIRONMENT_KEY   | k                         | True
    WEIR_REDIS_PASSWORD    | p                         | True
    WEIR_REDIS_URL         | redis://grader:p@h:6379/0 | True
    WEIR_REDIS_URL         | redis://grader@h:6379/0   | False
    WEIR_JUDGES            | {}                        | True
    HF_TOKEN               | t                         | True
    aws_secret_access_key  | k                         | True
    PGPASSWORD             | p                         | True
    DATABASE_URL           | pg://me:p@h/db            | True
    HTTPS_PROXY            | http://me:p@h:3128        | False
    RAY_AUTH_TOKEN         | t                         | False
    WEIR_KEEP_SAMPLES_DAYS | 7                         | False
    TOKENIZERS_PARALLELISM | false                     | False
    MONKEY                 | business                  | False
    PWD                    | /work                     | False
""")
def test_a_secret_is_known_by_its_name_or_by_the_password_in_a_url(
    name: str, text: str, is_one: bool
) -> None:
    assert is_secret(name, text) == is_one


SECRETS = {"WEIR_API_KEYS": "s3cr3t-key", "WEIR_REDIS_URL": "redis://u:s3cr3t-password@h:1/0"}
CODE = """
import json, os, subprocess, sys
from services.chassis.secret_variables import all_variables, hide_secrets, lookup
os.environ["WEIR_API_KEYS"] = os.environ["WEIR_API_KEYS"]  # a library may set it again
hide_secrets(sys.argv[1:] or None)
show = "import sys; sys.stdout.write(open('/proc/self/environ').read())"
print(json.dumps({
    "own": open("/proc/self/environ").read(),
    "child": subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout,
    "found": [lookup(os.environ, name) for name in ("WEIR_API_KEYS", "WEIR_REDIS_URL", "NO")],
    "elsewhere": lookup({}, "WEIR_API_KEYS"),
    "successor": all_variables()["WEIR_API_KEYS"],
}))
"""


def read_environments(*names: str) -> dict[str, str]:
    environment = {**os.environ, **SECRETS, "PLAIN": "for all"}
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_hidden_secret_is_in_neither_environment_block_and_can_still_be_read() -> None:
    environments = read_environments()
    for process in ("own", "child"):
        assert "s3cr3t" not in environments[process], process
        assert "PLAIN=for all" in environments[process].split("\0"), process
    assert "WEIR_API_KEYS=**********" in environments["own"].split("\0"), "its place stays"
    assert environments["found"] == [*SECRETS.values(), None]
    assert environments["elsewhere"] is None, "only the environment of the process has them"
    assert environments["successor"] == SECRETS["WEIR_API_KEYS"]


def test_names_limit_what_is_hidden() -> None:
    environments = read_environments("WEIR_API_KEYS")
    assert "s3cr3t-key" not in environments["own"] + environments["child"]
    assert "s3cr3t-password" in environments["own"]


def test_a_service_that_cannot_start_has_hidden_its_secrets_and_does_not_tell_them(
    tmp_path: Path,
) -> None:
    text = {**SECRETS, "WEIR_DATA_DIR": str(tmp_path), "WEIR_PORT": "http"}
    done = subprocess.run(
        [sys.executable, "-c", "from services.chassis.service import *; run_service('x', None)"],
        env=os.environ | text,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "WEIR_PORT" in done.stderr) == (1, True)
    assert "s3cr3t" not in done.stderr + done.stdout
