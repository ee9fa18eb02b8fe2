"""Each role gets the answers that the tables of access.txt list."""

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from services.gateway.core.calls.session_store import SessionStore
from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.fake_rollout import a_rollout
from tests.contract.gateway.stack import (
    ENVIRONMENT_KEY,
    JOBS,
    KEY,
    Client,
    Stack,
    a_gateway,
    a_grader,
    submit_job,
    train,
    upload,
)
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis


def read_rows(table: str) -> list[list[str]]:
    text = Path(__file__).with_name("access.txt").read_text().replace("`", "")
    lines = text.split(f"# {table}")[1].split("\n\n")[0].splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    return [line.strip("| ").split(" | ") for line in rows]


(_, *ROLES), *ROLE_ROWS = read_rows("what roles get")
_, *ALLOWED_ROWS = read_rows("what operators allow")
REQUESTS = {action: request for action, request in read_rows("what is sent")[1:]}


@dataclass
class Site:
    """A stack with a job that trains, and a client of it."""

    stack: Stack
    admin: Client
    job: str
    keys: dict[str, str | None]

    def open_session(self) -> httpx.Response:
        terms = {
            "job_id": self.job,
            "purpose": "train",
            "sampling": {"max_tokens": 3},
            "seed": 7,
        }
        return self.admin.put(f"/rollout/{secrets.token_hex(4)}", json=terms)

    def open_plain_session(self) -> str:
        """One without terms."""
        name = secrets.token_hex(4)
        SessionStore(self.stack.data_dir / "sessions").open(name, None)
        return f"/rollout/{name}"

    def end_job(self) -> str:
        path = f"{JOBS}/{submit_job(self.admin)}"
        self.admin.post(f"{path}/cancel")
        return path

    def act(self, role: str, action: str) -> httpx.Response:
        """Send the request of an action, with what it names made for it."""
        opened = self.open_session()
        episode = opened.url.path
        makers: dict[str, Callable[[], object]] = {
            "file": lambda: upload(self.admin).json()["id"],
            "outside": lambda: self.stack.models.parent / "outside",
            "job": lambda: self.job,
            "new job": lambda: f"{JOBS}/{submit_job(self.admin)}",
            "ended job": self.end_job,
            "new name": lambda: secrets.token_hex(4),
            "episode": lambda: episode,
            "other session": lambda: self.open_session().url.path,
            "deleted session": lambda: self.admin.delete(episode).url.path,
            "plain session": self.open_plain_session,
        }
        request = re.sub(
            "{([a-z ]+)}",
            lambda name: str(makers[name[1]]()),
            REQUESTS[action],
        )
        keys = {**self.keys, "session": opened.json()["key"]}
        with self.stack.http(keys[role]) as http:
            if request == "upload":
                return upload(http)
            method, path, *body = request.split(maxsplit=2)
            headers = {"Content-Type": "application/json"}
            return http.request(
                method,
                path,
                content="".join(body),
                headers=headers,
            )


@contextmanager
def a_site(folder: Path, **variables: str) -> Iterator[Site]:
    a_models_root(folder)
    keys = {role: f"{role}-key" for role in ("read", "write")}
    entries = [
        f"{role}:{role}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        for role, key in keys.items()
    ]
    with (
        Server(folder) as server,
        a_gateway(
            server,
            folder,
            WEIR_API_KEYS=",".join((KEY, *entries)),
            **variables,
        ) as stack,
        a_grader(stack, **variables),
        a_rollout(stack),
        stack.http() as admin,
    ):
        job = submit_job(admin)
        train(stack, job)
        others = {"no key": None, "admin": KEY, "environment": ENVIRONMENT_KEY}
        yield Site(stack, admin, job, keys | others)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With the operator's variables as they are by default."""
    with a_site(tmp_path_factory.mktemp("default")) as site:
        yield site


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    variables = dict(variable.split("=", 1) for variable, *_ in ALLOWED_ROWS)
    with a_site(tmp_path_factory.mktemp("allowing"), **variables) as site:
        yield site


def outcome(site: Site, role: str, action: str) -> str:
    reply = site.act(role, action)
    answer = reply.json() if "json" in reply.headers["content-type"] else {}
    field = (answer.get("error") or {}).get("param") or ""
    assert (field == "Authorization") == (reply.status_code in {401, 403})
    return f"{reply.status_code} {field}".removesuffix("Authorization").strip()


@pytest.mark.parametrize(
    ("action", "expected"),
    [(row[0], row[1:]) for row in ROLE_ROWS],
)
def test_a_role_gets_what_the_table_says(site: Site, action: str, expected: list[str]) -> None:
    assert [outcome(site, role, action) for role in ROLES] == expected


@pytest.mark.parametrize(
    ("action", "expected"),
    [row[1:] for row in ALLOWED_ROWS],
)
def test_a_client_gets_what_an_operator_allows(allowing: Site, action: str, expected: str) -> None:
    assert outcome(allowing, "write", action) == expected


def test_the_table_has_every_action() -> None:
    assert {row[0] for row in ROLE_ROWS} == REQUESTS.keys()
