"""Who may do what, and how often: API keys, their roles, and limits per key and address."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.chassis.deployment import Deployment, DeploymentError
from services.gateway.errors import Problem, respond
from services.gateway.middleware.buckets import Buckets

log = logging.getLogger(__name__)
ROLES = ("read", "write", "admin")  # each may also do what those before it may
_ENTRY = re.compile(r"([\w.@-]{1,64}):(read|write|admin):sha256:([0-9a-fA-F]{64})")
_ROLE_FOR = {"GET": "read", "HEAD": "read", "OPTIONS": "read", "POST": "write"}
_BURST_S = 5.0  # requests of so many seconds may come at once
_MOST_ACCEPTED = 10_000


@dataclass(frozen=True)
class ApiKey:
    """A key of the deployment; of the key itself only its SHA-256 is kept."""

    name: str
    role: str
    digest: str

    def may(self, role: str) -> bool:
        """Whether its role includes another."""
        return ROLES.index(self.role) >= ROLES.index(role)


def parse_keys(entries: Iterable[str]) -> tuple[ApiKey, ...]:
    """The keys that WEIR_API_KEYS lists: ``NAME:ROLE:sha256:HEX``, or a plain key of an admin.

    Raises:
        DeploymentError: naming the place of an entry that is neither, or a name that two have.
    """
    keys = tuple(_parse(number, entry) for number, entry in enumerate(entries, start=1))
    for name, count in Counter(key.name for key in keys).items():
        if count > 1:
            raise DeploymentError(
                f"WEIR_API_KEYS: {count} keys have the name {name!r}, so that nobody could tell "
                "who did what; give each a name of its own"
            )
    return keys


def _parse(number: int, entry: str) -> ApiKey:
    if ":" not in entry:
        return ApiKey(f"key-{number}", "admin", _digest(entry.encode()))
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise DeploymentError(
            f"WEIR_API_KEYS: entry {number} is not NAME:ROLE:sha256:HEX, with the role read, write "
            "or admin and the 64 hex digits of the key's SHA-256; a plain key has no colon: write "
            "one that has as NAME:admin:sha256:HEX, or choose one without"
        )
    return ApiKey(match[1], match[2], match[3].lower())


class Guarded:
    """Lets requests below /v1 pass with a key whose role allows them, and none come too often."""

    def __init__(self, app: ASGIApp, keys: tuple[ApiKey, ...], deployment: Deployment) -> None:
        self.app = app
        self.keys = keys
        requests, guesses = deployment.requests_per_s, deployment.wrong_keys_per_minute
        self.requests = Buckets(max(1.0, _BURST_S * requests), requests)
        self.guesses = Buckets(max(1.0, guesses), guesses / 60)
        # Who has shown a key once is not locked out by what others of its address guess.
        self.accepted: dict[tuple[str, str], ApiKey] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 401, 403 or 429."""
        if scope["type"] == "http":
            try:
                self._admit(scope)
            except Problem as problem:
                return await respond(problem)(scope, receive, send)
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Note the key's name in the scope.

        Raises:
            Problem: if the request may not pass.
        """
        is_open = not scope["path"].startswith("/v1")
        address = _source(scope)
        presented = None if is_open else _bearer(scope)
        key = self._recognize(presented, address) if presented else None
        scope["key_name"] = key.name if key else None
        _refuse_for(
            self.requests.take((scope["key_name"], address)),
            f"more than {self.requests.per_s:g} requests a second with this key from this address",
        )
        if is_open:
            return
        if key is None:
            raise _unauthorized("no API key: send 'Authorization: Bearer KEY'")
        role = _ROLE_FOR.get(scope["method"], "admin")
        if not key.may(role):
            message = f"{scope['method']} needs a key with the role {role}; this one has {key.role}"
            raise Problem(403, message, param="Authorization", code="insufficient_role")

    def _recognize(self, presented: bytes, address: str) -> ApiKey:
        """The key that a text is.

        Raises:
            Problem: 401 if it is none, 429 without a look at it after too many of those.
        """
        digest = _digest(presented)
        if known := self.accepted.get((address, digest)):
            return known
        _refuse_for(self.guesses.take(address), "too many wrong API keys from this address")
        found = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not found:
            log.warning("a wrong API key", extra={"address": address})
            raise _unauthorized("wrong API key: it is not in WEIR_API_KEYS")
        self.guesses.give_back(address)
        if len(self.accepted) >= _MOST_ACCEPTED:
            self.accepted.clear()
        self.accepted[address, digest] = found[0]
        return found[0]


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _bearer(scope: Scope) -> bytes | None:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") or None if scheme.lower() == "bearer" else None


def _source(scope: Scope) -> str:
    """The client's address; of IPv6 the network, since a single customer has all of it."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def _refuse_for(wait_s: float, why: str) -> None:
    if wait_s:
        seconds = math.ceil(wait_s)
        message = f"{why}; try again in {seconds} s"
        headers = {"Retry-After": str(seconds)}
        raise Problem(429, message, code="rate_limit_exceeded", headers=headers)


def _unauthorized(message: str) -> Problem:
    headers = {"WWW-Authenticate": "Bearer"}
    return Problem(401, message, param="Authorization", code="invalid_api_key", headers=headers)
