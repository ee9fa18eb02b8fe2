"""An OpenEnv server: the policy's replies are actions, and observations are what it is told.

Its wire is JSON over a WebSocket, a session for each. The package `openenv` is not needed, and
cannot be installed next to `verifiers`, whose release of `mcp` it excludes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from protocol.messages import ChatMessage, Task
from protocol.recipe import Environment
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from services.chassis.faults import UnsupportedEntry
from services.environment.addresses import Addresses, AddressRefused
from services.environment.door import ContextFull, Session
from services.environment.episodes import Broken, Play

_PATIENCE_S = 60.0  # with a server that restarts
_PAUSE_S = 1.0
_MAX_BYTES = 2**24  # of a message
_MAX_SCHEMA_BYTES = 2**20


class Refused(Exception):
    """The server answers with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@asynccontextmanager
async def open_server(environment: Environment, addresses: Addresses) -> AsyncIterator[Play]:
    """Play with a server of OpenEnv.

    Raises:
        UnsupportedEntry: if the workers may not connect to it.
    """
    assert environment.url is not None
    url = httpx.URL(environment.url.rstrip("/"))
    async with httpx.AsyncClient(trust_env=False) as http:
        game = _Game(url, http, environment, addresses)
        try:
            await addresses.resolve(*game.place)
        except AddressRefused as error:
            raise UnsupportedEntry(f"environment.url: {error}") from error
        except OSError:
            pass  # the server may come
        yield game.play


@dataclass(frozen=True)
class _Seen:
    """What the server says of a reset or a step."""

    text: str
    reward: float | None
    done: bool

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> _Seen:
        """An observation of one text is that text, any other is JSON."""
        told = {name: value for name, value in data["observation"].items() if name != "metadata"}
        is_text = len(told) == 1 and isinstance(next(iter(told.values())), str)
        text = next(iter(told.values())) if is_text else json.dumps(told, ensure_ascii=False)
        reward = data.get("reward")
        return cls(text, None if reward is None else float(reward), bool(data.get("done")))


@dataclass(frozen=True)
class _Game:
    url: httpx.URL
    http: httpx.AsyncClient
    environment: Environment
    addresses: Addresses

    @property
    def is_safe(self) -> bool:
        return self.url.scheme in {"https", "wss"}

    @property
    def place(self) -> tuple[str, int]:
        return self.url.host, self.url.port or (443 if self.is_safe else 80)

    async def _connect(self) -> connect:
        """A connection to an address that is allowed; a redirection is not followed from it."""
        address = self.url.copy_with(scheme="wss" if self.is_safe else "ws")
        connection = await self.addresses.connect(*self.place)
        return connect(f"{address}/ws", sock=connection, max_size=_MAX_BYTES, proxy=None)

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """The sum of the rewards of all steps; None if the game ended and no step had one.

        Running out of turns or of context, and an action of another form, are the policy's own
        fault: they end the game with what it has, or 0.
        """
        given = {"seed": seed, **self.environment.settings, **task.metadata}
        async with self._begun(given) as (socket, seen):
            schema, rewards = await self._schema(), list[float]()
            messages = _opening(task, seen.text)
            for _ in range(self.environment.max_turns):
                try:
                    reply = await session.chat(messages)
                    seen = await _asked(socket, "step", _action(reply, schema))
                except (ContextFull, InvalidAction):
                    return sum(rewards)
                rewards += [] if seen.reward is None else [seen.reward]
                if seen.done:
                    return sum(rewards) if rewards else None
                messages += [_turn("assistant", reply), _turn("user", seen.text)]
            return sum(rewards)

    @asynccontextmanager
    async def _begun(
        self, given: Mapping[str, Any]
    ) -> AsyncIterator[tuple[ClientConnection, _Seen]]:
        """A session of the server's, once it has a place for one."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket = await (await self._connect())
            except AddressRefused as error:
                raise Broken("episode_failed", f"environment.url: {error}") from error
            except (OSError, InvalidHandshake) as error:
                if time.monotonic() > deadline:
                    why = f"the OpenEnv server at {self.url} does not answer: {error}"
                    raise Broken("episode_failed", why) from error
                await asyncio.sleep(_PAUSE_S)
                continue
            async with socket:
                try:
                    seen = await _asked(socket, "reset", given)
                except Refused as error:
                    if error.code != "CAPACITY_REACHED":
                        raise
                else:
                    yield socket, seen
                    return
            await asyncio.sleep(_PAUSE_S)

    async def _schema(self) -> Mapping[str, Any]:
        host, port = self.place
        scheme = "https" if self.is_safe else "http"
        try:
            address = await self.addresses.resolve(host, port)
            path = f"{self.url.path.rstrip('/')}/schema"
            url = self.url.copy_with(scheme=scheme, host=address, path=path)
            headers = {"Host": self.url.netloc.decode(), "Accept-Encoding": "identity"}
            names = {"sni_hostname": host}
            async with self.http.stream("GET", url, headers=headers, extensions=names) as reply:
                return json.loads(await _read(reply.raise_for_status()))["action"]
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError) as error:
            why = f"the OpenEnv server at {self.url} gives no schema: {error}"
            raise Broken("episode_failed", why) from error


async def _read(reply: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > _MAX_SCHEMA_BYTES:
            raise ValueError(f"it has over {_MAX_SCHEMA_BYTES >> 20} MiB")
    return bytes(body)


class InvalidAction(Exception):
    """A reply is no action of the environment."""


def _opening(task: Task, observation: str) -> list[dict[str, str]]:
    """The task's messages, the last of which goes on with the observation if that says more."""
    messages = task.messages or (ChatMessage(role="user", content=task.prompt or ""),)
    *before, last = (_turn(each.role, each.content) for each in messages)
    parts = dict.fromkeys(filter(None, (last["content"], observation)))
    return [*before, _turn(last["role"], "\n\n".join(parts))]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _action(reply: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object, or the text of the one field that an action needs."""
    try:
        if isinstance(found := json.loads(reply), dict):
            return found
    except (ValueError, RecursionError):
        pass
    needed = schema.get("required", [])
    if len(needed) != 1:
        raise InvalidAction
    return {needed[0]: reply}


async def _asked(socket: ClientConnection, kind: str, data: Mapping[str, Any]) -> _Seen:
    with suppress(ConnectionClosed):  # what is said before that can still be read
        await socket.send(json.dumps({"type": kind, "data": data}))
    try:
        told = json.loads(await socket.recv())
    except ConnectionClosed as error:
        raise Broken("episode_failed", f"the OpenEnv server broke off: {error}") from error
    if told["type"] != "error":
        return _Seen.of(told["data"])
    if kind == "step" and told["data"].get("code") == "VALIDATION_ERROR":
        raise InvalidAction
    raise Refused(told["data"].get("code", ""), str(told["data"].get("message")))
