"""Sessions at the gateway, over HTTP: one for each try of an episode, with a trace of its calls."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from protocol.calls import Terms
from protocol.traces import Trace

from services.chassis.faults import Busy

# Agents may use any model name: the session decides which weights are sampled.
MODEL = "policy"
_REQUEST_TIMEOUT_S = 60.0
# A call without new tokens for this long has lost its rollout.
_MAX_QUIET_S = 600.0
_ENGINE_FAILURES = {"engine_error", "rollout_lost"}
_CONTEXT_FULL = "context_length_exceeded"
_SERVER_ERROR = 500


class GatewayUnavailable(Busy):
    """The model does not respond, through no fault of the environment."""


class ContextFull(Exception):
    """The context leaves no room for another turn."""


class CallFailed(RuntimeError):
    """A call failed in the engine. Its cause may be the call, so it counts against the group."""


def is_full(trace: Trace) -> bool:
    """Return whether the last call failed because the context was full."""
    error = trace.calls[-1].error if trace.calls else None
    return error is not None and error.code == _CONTEXT_FULL


def raise_server_error(trace: Trace) -> None:
    """Raise the first server error that no later call with the same messages made good."""
    for index, call in enumerate(trace.calls):
        error = call.error
        if error is None or error.status < _SERVER_ERROR:
            continue
        successes = [later.messages for later in trace.calls[index:] if later.error is None]
        if call.messages is not None and call.messages in successes:
            continue
        message = f"a call failed: {error.code}: {error.message}"
        raise (CallFailed if error.code in _ENGINE_FAILURES else GatewayUnavailable)(message)


def raise_if_silent(trace: Trace) -> None:
    if any(call.quiet_seconds > _MAX_QUIET_S for call in trace.under_way):
        raise GatewayUnavailable(f"a call has sent no token for {_MAX_QUIET_S:g} s")


@dataclass(frozen=True)
class Session:
    """A session at the gateway: its URL without ``/v1``, and the key for its calls."""

    url: str
    key: str
    http: httpx.AsyncClient | None = None

    async def chat(self, messages: list[dict[str, str]]) -> str:
        """Return the policy's reply; only for a session with an HTTP client.

        Raises:
            ContextFull: if there is no room for a reply.
            GatewayUnavailable: if the model does not respond.
            httpx.HTTPStatusError: if the gateway refuses the call.
        """
        assert self.http is not None
        url = f"{self.url}/v1/chat/completions"
        body = {"model": MODEL, "messages": messages}
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            reply = await self.http.post(url, json=body, headers=headers, timeout=None)
        except httpx.HTTPError as error:
            message = f"a call has no reply: {type(error).__name__}: {error}"
            raise GatewayUnavailable(message) from error
        if reply.status_code == httpx.codes.BAD_REQUEST and _CONTEXT_FULL in reply.text:
            raise ContextFull
        if reply.is_server_error:
            raise GatewayUnavailable(f"a call failed: {reply.text[:200]}")
        reply.raise_for_status()
        return reply.json()["choices"][0]["message"]["content"]


@dataclass(frozen=True)
class GatewayClient:
    """A client of the gateway; each method raises `GatewayUnavailable` if a request fails."""

    url: str
    http: httpx.AsyncClient

    async def open_session(self, name: str, terms: Terms) -> Session:
        url = f"{self.url}/rollout/{name}-{secrets.token_hex(4)}"
        reply = await self._request("PUT", url, terms.model_dump(mode="json"))
        return Session(url, reply.json()["key"], self.http)

    async def read_trace(self, session: Session) -> Trace:
        return Trace.model_validate_json((await self._request("GET", session.url)).content)

    async def close_session(self, session: Session) -> Trace:
        return Trace.model_validate_json((await self._request("DELETE", session.url)).content)

    async def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            reply = await self.http.request(method, url, json=body, timeout=_REQUEST_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise GatewayUnavailable(
                f"the gateway at {self.url} does not respond: {type(error).__name__}: {error}; "
                "check WEIR_GATEWAY_URL"
            ) from error
        if reply.is_error:
            hint = "; check WEIR_ENVIRONMENT_KEY" if reply.status_code in (401, 403) else ""
            raise GatewayUnavailable(
                f"the gateway responds {reply.status_code}: {reply.text[:200]}{hint}"
            )
        return reply


def http_client(key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"},
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        trust_env=False,
    )
