"""The routes of calls, and of the sessions that record them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from protocol.calls import Terms
from starlette.requests import ClientDisconnect

from services.gateway.api.calls import requests
from services.gateway.api.calls.responses import (
    ChatResponse,
    CompletionResponse,
    GenerateResponse,
    Json,
)
from services.gateway.api.dependencies import Jobs
from services.gateway.api.middleware import ENVIRONMENT, SESSION
from services.gateway.api.places import CALLS
from services.gateway.core.calls import session_store
from services.gateway.core.calls.model_resolution import resolve_active_job, resolve_model
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.core.calls.session import Session
from services.gateway.core.calls.session_store import SessionStore
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import Problem, not_found, openai_error

STATUS_TIMEOUT_S = 5.0  # an error within this time is the status of a stream, later an event
COMMENT_EVERY_S = 3.0  # in a stream without news
_EVENT_STREAM = "text/event-stream"
_ROUTE: dict[str, Any] = {
    "response_model": None,
    "responses": {
        200: {
            "description": "The response; with stream=true server-sent events, at last `[DONE]`",
            "content": {_EVENT_STREAM: {"schema": {"type": "string"}}},
        }
    },
    "dependencies": [CALLS],
}
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SessionName = Annotated[str, Path(pattern=session_store.NAME)]


async def validate_session_name(session: SessionName) -> str:
    return session


_calls = APIRouter(tags=["calls"])
_sessions = APIRouter(prefix="/rollout/{session}", tags=["calls"])


def install(app: FastAPI, pending_calls: PendingCalls, sessions: SessionStore) -> None:
    app.state.pending_calls = pending_calls
    app.state.sessions = sessions
    app.include_router(_calls)
    in_session = [Depends(validate_session_name)]
    app.include_router(_calls, prefix=_sessions.prefix, dependencies=in_session)
    app.include_router(_sessions)


@_calls.post("/v1/chat/completions", **_ROUTE)
async def chat(body: requests.ChatRequest, request: Request, jobs: Jobs) -> Response:
    """Respond to a chat with a model, or with the policy that is trained."""
    return await _respond(ChatResponse, body, request, jobs)


@_calls.post("/v1/completions", **_ROUTE)
async def complete(body: requests.CompletionRequest, request: Request, jobs: Jobs) -> Response:
    """Continue a text, or tokens."""
    return await _respond(CompletionResponse, body, request, jobs)


@_calls.post("/inference/v1/generate", **_ROUTE)
async def generate(body: requests.GenerateRequest, request: Request, jobs: Jobs) -> Response:
    """Continue tokens, with tokens: vLLM's own route."""
    return await _respond(GenerateResponse, body, request, jobs)


@_sessions.put("")
async def open_session(session: SessionName, terms: Terms, request: Request) -> Json:
    """Open a session for an episode of the active job; its terms hold for all its calls."""
    key = await asyncio.to_thread(request.app.state.sessions.open, session, terms)
    return {"id": session, "object": "rollout", "key": key}


@_sessions.get("")
async def get_session(session: SessionName, request: Request) -> Response:
    """Return the calls of a session and their tokens, with those that continue each other."""
    store = _readable_sessions(request, session)
    trace = await asyncio.to_thread(store.trace, session)
    return Response(
        trace.model_dump_json(by_alias=True, exclude={"deleted"}), media_type="application/json"
    )


@_sessions.delete("")
async def delete_session(session: SessionName, request: Request) -> Response:
    """Delete a session, and return its record."""
    store = _readable_sessions(request, session)
    trace = await asyncio.to_thread(store.delete, session)
    return Response(trace.model_dump_json(by_alias=True), media_type="application/json")


def _readable_sessions(request: Request, session: str) -> SessionStore:
    """Return the store; 403 if the key is the environment's, and the session is no episode's."""
    store: SessionStore = request.app.state.sessions
    if request.scope["key"].role == ENVIRONMENT and not store.has_terms(session):
        reason = f"session {session} has no terms; an environment's key is for its episodes alone"
        raise Problem(403, reason, param="Authorization", code="insufficient_role")
    return store


async def _find_session(request: Request) -> Session | None:
    """Return the session that a request names; 404 if its key is another session's."""
    name = request.path_params.get("session")
    store = request.app.state.sessions
    session = await asyncio.to_thread(store.find, name) if name else None
    key = request.scope["key"]
    # The session may have ended, and another one may have its name.
    if key.role == SESSION and (session is None or session.head.key != key.digest):
        raise not_found("session", str(name))
    return session


async def _respond(
    kind: type[ChatResponse], body: requests.Request, request: Request, jobs: JobService
) -> Response:
    name = request.path_params.get("session")
    store: SessionStore = request.app.state.sessions
    session = await _find_session(request)
    resolve = partial(resolve_model, body.model, jobs)
    if session is not None and session.terms is not None:
        resolve = partial(resolve_active_job, session.terms.job_id, jobs)
    response_id = f"{kind.PREFIX}-{secrets.token_hex(12)}"
    calls = body.build_calls(response_id, jobs.exchange.me, await resolve())
    if name and session is None:
        session = await asyncio.to_thread(store.begin, name)
    if session is not None:
        calls = [session.admit(call, body.sampling.requested_tokens) for call in calls]
    changed = asyncio.Event()
    pending = [PendingCall(call, resolve, changed) for call in calls]
    if session is not None:
        session.track(pending)
    record = partial(store.record, name) if name else None
    changes = request.app.state.pending_calls.follow(pending, record)
    response = kind(response_id, body, pending)
    if not body.stream:
        await _wait(changes, request)
        return await asyncio.to_thread(lambda: JSONResponse(response.to_object()))
    deadline = time.monotonic() + STATUS_TIMEOUT_S
    await _wait(
        changes, request, lambda: bool(pending[0].prompt_ids) or time.monotonic() > deadline
    )
    events = _stream(changes, response)
    return StreamingResponse(events, headers=_STREAM_HEADERS, media_type=_EVENT_STREAM)


async def _wait(
    changes: AsyncGenerator[None, None],
    request: Request,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until calls are done, or it is enough.

    Raises:
        ClientDisconnect: if the client has left.
    """
    try:
        async for _ in changes:
            if is_enough():
                return
            if await request.is_disconnected():
                raise ClientDisconnect
    except BaseException:
        await changes.aclose()
        raise


async def _stream(
    changes: AsyncGenerator[None, None], response: ChatResponse
) -> AsyncIterator[str]:
    """Yield server-sent events: chunks, and comments on the rollouts while there are none."""
    sent_at = time.monotonic()
    try:
        yield _format_events(*response.chunks())
        async for _ in changes:
            event = _format_events(*response.chunks())
            if not event and time.monotonic() - sent_at > COMMENT_EVERY_S:
                event = f": {response.calls[0].activity or 'still here'}\n\n"
            if event:
                yield event
                sent_at = time.monotonic()
        if response.request.stream_options.include_usage:
            yield _format_events(response.usage_chunk())
        yield "data: [DONE]\n\n"
    except Problem as problem:
        yield _format_events({"error": openai_error(problem).model_dump()})
    finally:
        await changes.aclose()


def _format_events(*objects: Json) -> str:
    return "".join(f"data: {json.dumps(payload)}\n\n" for payload in objects)
