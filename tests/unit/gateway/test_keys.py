"""Who may pass: keys, their roles, guesses, and how often."""

from __future__ import annotations

import hashlib
import logging

import httpx
import pytest
from starlette.responses import PlainTextResponse

from services.chassis.deployment import Deployment, DeploymentError
from services.gateway.middleware.buckets import Buckets
from services.gateway.middleware.keys import Guarded, parse_keys

pytestmark = pytest.mark.anyio
NEEDED = {"WEIR_REDIS_URL": "redis://nowhere", "WEIR_DATA_DIR": "/data", "WEIR_PORT": "1"}


def an_entry(name: str, role: str, key: str) -> str:
    return f"{name}:{role}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


KEYS = [an_entry(f"{role}er", role, f"{role}-key") for role in ("read", "write", "admin")]


class Door:
    """A guarded application that answers everything, and who stands before it."""

    def __init__(self, *keys: str, **variables: str) -> None:
        deployment = Deployment.from_environment({**NEEDED, **variables})
        self.app = Guarded(PlainTextResponse("in"), parse_keys(keys), deployment)

    async def ask(
        self,
        key: str | None,
        method: str = "GET",
        path: str = "/v1/files",
        address: str = "192.0.2.1",
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=(address, 5000))
        headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            return await client.request(method, path, headers=headers)


def test_an_entry_is_a_hash_with_a_name_and_a_role_or_a_plain_key_of_an_admin() -> None:
    hashed, plain = parse_keys([an_entry("alice@here", "read", "secret"), "plain-key"])
    assert (hashed.name, hashed.role) == ("alice@here", "read")
    assert (plain.name, plain.role) == ("key-2", "admin")
    assert hashed.digest == hashlib.sha256(b"secret").hexdigest()
    assert "plain-key" not in repr(plain)


@pytest.mark.parametrize(
    "entry",
    [
        "alice:read:secret",
        "alice:owner:sha256:" + "0" * 64,
        "alice:read:sha256:" + "0" * 63,
        ":read:sha256:" + "0" * 64,
    ],
)
def test_an_entry_that_is_neither_is_refused_by_its_place_and_not_shown(entry: str) -> None:
    with pytest.raises(DeploymentError, match="entry 2") as caught:
        parse_keys(["plain", entry])
    assert entry not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("read", {"GET", "HEAD"}),
        ("write", {"GET", "HEAD", "POST"}),
        ("admin", {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "MADE-UP"}),
    ],
)
async def test_a_key_may_do_what_its_role_says(role: str, allowed: set[str]) -> None:
    door = Door(*KEYS)
    for method in ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "MADE-UP"):
        reply = await door.ask(f"{role}-key", method)
        assert reply.status_code == (200 if method in allowed else 403), method
        if method not in allowed:
            needed = "write" if method == "POST" else "admin"
            assert reply.json()["error"]["code"] == "insufficient_role"
            assert f"role {needed}" in reply.json()["detail"]


@pytest.mark.parametrize("given", ["read-ke", "read-keys", KEYS[0], KEYS[0][-64:], "é"])
async def test_neither_a_part_nor_the_hash_of_a_key_opens(given: str) -> None:
    assert (await Door(*KEYS).ask(given)).status_code == 401


async def test_who_guesses_is_not_heard_any_more_and_nobody_else_is_locked_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = Door(*KEYS, WEIR_WRONG_KEYS_PER_MINUTE="0.001")
    assert (await door.ask("read-key")).status_code == 200
    guess = await door.ask("guess-of-mine")
    assert guess.status_code == 401
    for key in ("guess-of-mine", "admin-key"):  # right, but not shown before
        reply = await door.ask(key)
        assert reply.status_code == 429
        assert reply.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(reply.headers["Retry-After"]) > 50_000
    assert (await door.ask("read-key")).status_code == 200
    assert (await door.ask("admin-key", address="192.0.2.2")).status_code == 200
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert vars(record)["address"] == "192.0.2.1"
    assert "guess-of-mine" not in str(vars(record))


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("", "", True),
    ],
)
async def test_addresses_of_one_network_share_a_limit(one: str, other: str, share: bool) -> None:
    door = Door(*KEYS, WEIR_REQUESTS_PER_S="0.001")
    assert (await door.ask("read-key", address=one)).status_code == 200
    reply = await door.ask("read-key", address=other)
    assert reply.status_code == (429 if share else 200)


async def test_right_keys_and_no_keys_are_no_guesses() -> None:
    door = Door(*KEYS, WEIR_WRONG_KEYS_PER_MINUTE="0.001")
    for key in ("read-key", "write-key", "read-key "):  # blanks are no part of a key
        assert (await door.ask(key)).status_code == 200
    for key in (None, None, "wrong"):
        assert (await door.ask(key)).status_code == 401


async def test_requests_are_limited_by_key_and_address() -> None:
    door = Door(*KEYS, WEIR_REQUESTS_PER_S="0.001")
    assert (await door.ask("read-key")).status_code == 200
    reply = await door.ask("read-key")
    assert (reply.status_code, int(reply.headers["Retry-After"]) > 900) == (429, True)
    assert (await door.ask("write-key")).status_code == 200
    assert (await door.ask("read-key", address="192.0.2.2")).status_code == 200
    assert (await door.ask(None, path="/")).status_code == 200
    assert (await door.ask(None)).status_code == 429


def test_a_bucket_fills_again_and_the_oldest_is_forgotten() -> None:
    now = [0.0]
    buckets = Buckets(2, per_s=0.5, clock=lambda: now[0])
    assert [buckets.take("a"), buckets.take("a"), buckets.take("a")] == [0, 0, 2]
    now[0] = 1.0
    assert buckets.take("a") == 1
    buckets.give_back("a")
    assert buckets.take("a") == 0
    now[0] = 1000.0
    assert [buckets.take("a"), buckets.take("a"), buckets.take("a")] == [0, 0, 2]
    for who in range(10_000):
        buckets.take(who)
    assert buckets.take("a") == 0
