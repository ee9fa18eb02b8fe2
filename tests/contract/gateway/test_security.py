"""Each role gets the answers that the tables of access.txt list."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol.recipe import Environment

from services.chassis.deployment import Reader
from services.chassis.faults import UnsupportedEntry
from services.environment.hosts import GroupPlayer, Hosts
from services.environment.kinds import EnvironmentKinds
from services.environment.worker import read_kinds
from services.gateway.core.calls.session_store import SessionStore
from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.fake_rollout import a_seen_rollout
from tests.contract.gateway.stack import (
    ENVIRONMENT_KEY,
    JOBS,
    KEY,
    RECIPE,
    Stack,
    a_body,
    a_gateway,
    a_grader,
    a_job,
    reinforcement,
    submit_job,
    train,
    upload,
)
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis


def read_rows(table: str) -> list[list[str]]:
    text = Path(__file__).with_name("access.txt").read_text().replace("`", "")
    lines = text.split(f"# {table}:")[1].split("\n\n")[0].splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    return [line.strip("| ").split(" | ") for line in rows]


(_, *ROLES), *ROLE_ROWS = read_rows("what roles get")
_, *ALLOWED_ROWS = read_rows("what operators allow")


@dataclass
class Site:
    """A stack with a job that trains, and a client of it."""

    stack: Stack
    kinds: EnvironmentKinds  # which an environment worker plays
    job: str
    admin: httpx.Client
    http: httpx.Client  # of the role that acts
    episode: str = ""  # a session, whose key is that of the role `session`

    def open(self, http: httpx.Client) -> httpx.Response:
        terms = {"job_id": self.job, "purpose": "train", "sampling": {"max_tokens": 3}, "seed": 7}
        return http.put(f"/rollout/{secrets.token_hex(4)}", json=terms)

    def a_session(self) -> str:
        """One without terms."""
        name = secrets.token_hex(4)
        SessionStore(self.stack.data_dir / "sessions").open(name, None)
        return f"/rollout/{name}"

    def call(self, session: str) -> httpx.Response:
        body = {"model": self.job, "messages": [{"role": "user", "content": "Hello"}]}
        return self.http.post(f"{session}/v1/chat/completions", json=body)

    def a_job(self) -> str:
        return f"{JOBS}/{a_job(self.admin)['id']}"

    def an_ended_job(self) -> str:
        path = self.a_job()
        self.admin.post(f"{path}/cancel")
        return path

    @contextmanager
    def of(self, role: str) -> Iterator[Site]:
        opened = self.open(self.admin)
        keys = {"no key": None, "admin": KEY, "environment": ENVIRONMENT_KEY}
        keys |= {"session": opened.json()["key"]}
        with self.stack.http(keys.get(role, f"{role}-key")) as http:
            yield replace(self, http=http, episode=opened.url.path)


Action = Callable[[Site], httpx.Response]


def get(path: str) -> Action:
    return lambda site: site.http.get(path)


def submit(**changes: Any) -> Action:
    return lambda site: site.http.post(JOBS, json=a_body(site.admin, **changes))


def play(**environment: Any) -> Action:
    return submit(recipe={**RECIPE, "reward": {}, "environment": environment})


def grade(kind: str, **grader: Any) -> Action:
    return submit(method=reinforcement(grader={"type": kind, "name": "own", **grader}))


SCORED = [{"role": "user", "content": "{{sample.output_text}}"}]
SUMS = "examples.environments.sum_then_check"
ACTIONS: dict[str, Action] = {
    "upload a file": lambda site: upload(site.http),
    "submit a job": submit(),
    "… with a model outside of the roots": lambda site: submit(
        model=str(site.stack.models.parent / "outside")
    )(site),
    "… with the model /proc/self/root": submit(model="/proc/self/root"),
    "… with a model of the hub": submit(model="Qwen/Qwen3-4B"),
    "… with the source of a grader": grade("python", source="def grade(sample, item): ..."),
    "… with the judge strict": grade("score_model", model="strict", input=SCORED),
    "… with the judge lenient": grade("score_model", model="lenient", input=SCORED),
    f"… with the taskset {SUMS}": play(taskset=SUMS),
    "… with the taskset harbor": play(taskset="harbor"),
    "… with a command": play(command=["true"]),
    "… with the URL of a public address": play(url="https://1.1.1.1"),
    "… with the URL of a private address": play(url="http://127.0.0.1:9"),
    "list jobs": get(JOBS),
    "read a job": lambda site: site.http.get(site.a_job()),
    "read a job that is not there": get(f"{JOBS}/ftjob-none"),
    "read its events": lambda site: site.http.get(f"{site.a_job()}/events"),
    "read its samples": lambda site: site.http.get(f"{site.a_job()}/samples"),
    "read /proc/self/environ as a file": get("/v1/files/..%2F..%2Fproc%2Fself%2Fenviron/content"),
    "read the metrics": get("/metrics"),
    "pause a job": lambda site: site.http.post(f"{site.a_job()}/pause"),
    "delete a job that has ended": lambda site: site.http.delete(site.an_ended_job()),
    "list keys": get("/v1/keys"),
    "add a key": lambda site: site.http.post("/v1/keys", json={}),
    "call a model": lambda site: site.call(""),
    "open a session": lambda site: site.open(site.http),
    "call in the session of an episode": lambda site: site.call(site.episode),
    "call in another session": lambda site: site.call(site.open(site.admin).url.path),
    "call in a session that was deleted": lambda site: site.call(
        site.admin.delete(site.episode).url.path
    ),
    "list models in a session": lambda site: site.http.get(f"{site.episode}/v1/models"),
    "read the session of an episode": lambda site: site.http.get(site.episode),
    "delete the session of an episode": lambda site: site.http.delete(site.episode),
    "read a session without terms": lambda site: site.http.get(site.a_session()),
    "delete a session without terms": lambda site: site.http.delete(site.a_session()),
    "ask for the settings of Tinker's SDK": lambda site: site.http.post(
        "/api/v1/client/config", json={}
    ),
}


@contextmanager
def a_site(folder: Path, **variables: str) -> Iterator[Site]:
    a_models_root(folder)
    digests = {role: hashlib.sha256(f"{role}-key".encode()) for role in ("read", "write")}
    entries = [f"{role}:{role}:sha256:{digest.hexdigest()}" for role, digest in digests.items()]
    with (
        Server(folder) as server,
        a_gateway(server, folder, WEIR_API_KEYS=",".join((KEY, *entries)), **variables) as stack,
        a_grader(stack, **variables),
        a_seen_rollout(stack),
        stack.http() as admin,
    ):
        job = submit_job(admin)
        train(stack, job)
        yield Site(stack, read_kinds(Reader(variables), "", hidden=[]), job, admin, admin)


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


@pytest.fixture(autouse=True)
def skip_jail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play no episode, even in an environment that is accepted."""

    @asynccontextmanager
    async def open_group(*group: Any) -> AsyncIterator[GroupPlayer]:
        yield GroupPlayer(*group)

    monkeypatch.setattr(Hosts, "open_group", open_group)


def outcome(site: Site, role: str, action: str) -> str:
    with site.of(role) as acting:
        reply = ACTIONS[action](acting)
    answer = reply.json() if "json" in reply.headers["content-type"] else {}
    field = failed_field(site.kinds, answer.get("weir", {}).get("recipe", {}).get("environment"))
    if error := answer.get("error"):
        field = error["param"]
        assert (field == "Authorization") == (reply.status_code in {401, 403})
    return f"{reply.status_code} {field}".removesuffix(" None").removesuffix(" Authorization")


def failed_field(kinds: EnvironmentKinds, environment: dict[str, Any] | None) -> str | None:
    """Return the field that a worker names if it refuses an environment."""

    async def play(environment: Environment) -> None:
        async with kinds.open_environment(environment, "job"):
            pass

    try:
        if environment is not None:
            asyncio.run(play(Environment(**environment)))
    except UnsupportedEntry as error:
        return f"then {str(error).split()[0].rstrip(':')}"
    return None


@pytest.mark.parametrize(("action", "expected"), [(row[0], row[1:]) for row in ROLE_ROWS])
def test_a_role_gets_what_the_table_says(site: Site, action: str, expected: list[str]) -> None:
    assert [outcome(site, role, action) for role in ROLES] == expected


@pytest.mark.parametrize(("action", "expected"), [row[1:] for row in ALLOWED_ROWS])
def test_a_client_gets_what_an_operator_allows(allowing: Site, action: str, expected: str) -> None:
    assert outcome(allowing, "write", action) == expected


def test_the_table_has_every_action() -> None:
    assert {row[0] for row in ROLE_ROWS} == ACTIONS.keys()
