"""OpenEnv servers: the policy's replies are actions, and observations are its next messages.

A session is a WebSocket with messages of JSON. The package `openenv` is not needed, and cannot be
installed next to `verifiers`, since they require different releases of `mcp`.
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
from services.environment.episodes import EpisodeBroken, Play
from services.environment.gateway_client import ContextFull, Session

# A server that restarts gets this long.
_CONNECT_TIMEOUT_S = 60.0
_RETRY_S = 1.0
_MAX_MESSAGE_BYTES = 2**24
_MAX_SCHEMA_BYTES = 2**20


class ServerError(Exception):
    """The server sends an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidAction(Exception):
    """A reply is no action of the environment."""


@asynccontextmanager
async def open_server(environment: Environment, addresses: Addresses) -> AsyncIterator[Play]:
    """Play episodes with an OpenEnv server.

    Raises:
        UnsupportedEntry: if the workers may not connect to it.
    """
    assert environment.url is not None
    url = httpx.URL(environment.url.rstrip("/"))
    async with httpx.AsyncClient(trust_env=False) as http:
        server = _Server(url, http, environment, addresses)
        try:
            await addresses.resolve(url.host, server.port)
        except AddressRefused as error:
            raise UnsupportedEntry(f"environment.url: {error}") from error
        except OSError:
            # The server may start later.
            pass
        yield server.play


@dataclass(frozen=True)
class _Observation:
    text: str
    reward: float | None
    done: bool

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> _Observation:
        """Parse the result of a reset or a step; several fields become JSON."""
        fields = {name: value for name, value in data["observation"].items() if name != "metadata"}
        text = json.dumps(fields, ensure_ascii=False)
        if len(fields) == 1:
            (value,) = fields.values()
            text = value if isinstance(value, str) else text
        reward = data.get("reward")
        return cls(text, None if reward is None else float(reward), bool(data.get("done")))


@dataclass(frozen=True)
class _Server:
    url: httpx.URL
    http: httpx.AsyncClient
    environment: Environment
    addresses: Addresses

    @property
    def is_encrypted(self) -> bool:
        return self.url.scheme in {"https", "wss"}

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.is_encrypted else 80)

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Return the sum of the rewards of all steps; None if the game ended without one.

        Running out of turns or of context, and an invalid action, are the policy's fault: they end
        the game with the sum so far.
        """
        settings = {"seed": seed, **self.environment.settings, **task.metadata}
        async with self._reset(settings) as (socket, observation):
            schema = await self._read_schema()
            rewards: list[float] = []
            messages = _first_messages(task, observation.text)
            for _ in range(self.environment.max_turns):
                try:
                    reply = await session.chat(messages)
                    observation = await _request(socket, "step", _parse_action(reply, schema))
                except (ContextFull, InvalidAction):
                    break
                if observation.reward is not None:
                    rewards.append(observation.reward)
                if observation.done:
                    return sum(rewards) if rewards else None
                messages.append({"role": "assistant", "content": reply})
                messages.append({"role": "user", "content": observation.text})
            return sum(rewards)

    @asynccontextmanager
    async def _reset(
        self, settings: Mapping[str, Any]
    ) -> AsyncIterator[tuple[ClientConnection, _Observation]]:
        """Begin a game, as soon as the server has room for one."""
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        while True:
            try:
                socket = await self._connect()
            except AddressRefused as error:
                raise EpisodeBroken("episode_failed", f"environment.url: {error}") from error
            except (OSError, InvalidHandshake) as error:
                if time.monotonic() > deadline:
                    message = f"the OpenEnv server at {self.url} does not respond: {error}"
                    raise EpisodeBroken("episode_failed", message) from error
                await asyncio.sleep(_RETRY_S)
                continue
            async with socket:
                try:
                    observation = await _request(socket, "reset", settings)
                except ServerError as error:
                    if error.code != "CAPACITY_REACHED":
                        raise
                else:
                    yield socket, observation
                    return
            await asyncio.sleep(_RETRY_S)

    async def _connect(self) -> ClientConnection:
        """Connect to an allowed address; the given socket keeps it from following redirects."""
        url = self.url.copy_with(scheme="wss" if self.is_encrypted else "ws")
        socket = await self.addresses.connect(url.host, self.port)
        return await connect(f"{url}/ws", sock=socket, max_size=_MAX_MESSAGE_BYTES, proxy=None)

    async def _read_schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of an action."""
        try:
            url = self.url.copy_with(
                scheme="https" if self.is_encrypted else "http",
                host=await self.addresses.resolve(self.url.host, self.port),
                path=f"{self.url.path.rstrip('/')}/schema",
            )
            headers = {"Host": self.url.netloc.decode(), "Accept-Encoding": "identity"}
            tls = {"sni_hostname": self.url.host}
            async with self.http.stream("GET", url, headers=headers, extensions=tls) as reply:
                return json.loads(await _read_body(reply.raise_for_status()))["action"]
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError) as error:
            message = f"the OpenEnv server at {self.url} has no valid schema: {error}"
            raise EpisodeBroken("episode_failed", message) from error


async def _read_body(reply: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > _MAX_SCHEMA_BYTES:
            raise ValueError(f"it has over {_MAX_SCHEMA_BYTES >> 20} MiB")
    return bytes(body)


def _first_messages(task: Task, observation: str) -> list[dict[str, str]]:
    """Return the task's messages; an observation with another text is appended to the last one."""
    messages = task.messages or (ChatMessage(role="user", content=task.prompt or ""),)
    turns = [{"role": message.role, "content": message.content} for message in messages]
    last = turns[-1]
    parts = dict.fromkeys(filter(None, (last["content"], observation)))
    last["content"] = "\n\n".join(parts)
    return turns


def _parse_action(reply: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a reply, or its text as the only required field."""
    with suppress(ValueError, RecursionError):
        action = json.loads(reply)
        if isinstance(action, dict):
            return action
    required = schema.get("required", [])
    if len(required) != 1:
        raise InvalidAction
    return {required[0]: reply}


async def _request(socket: ClientConnection, kind: str, data: Mapping[str, Any]) -> _Observation:
    with suppress(ConnectionClosed):
        # A message sent before the connection closed can still be received.
        await socket.send(json.dumps({"type": kind, "data": data}))
    try:
        message = json.loads(await socket.recv())
    except ConnectionClosed as error:
        text = f"the OpenEnv server closed the connection: {error}"
        raise EpisodeBroken("episode_failed", text) from error
    content = message["data"]
    if message["type"] != "error":
        return _Observation.parse(content)
    code = content.get("code", "")
    if kind == "step" and code == "VALIDATION_ERROR":
        raise InvalidAction
    raise ServerError(code, str(content.get("message")))
