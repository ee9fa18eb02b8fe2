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
from services.gateway.api.calls.responses import Completion, Generated, Json, Shape
from services.gateway.api.middleware import ENVIRONMENT, SESSION
from services.gateway.api.places import CALLS
from services.gateway.core.calls import sessions
from services.gateway.core.calls.desk import Answer, Desk
from services.gateway.core.calls.served import newest_of, weights_of
from services.gateway.core.calls.sessions import Sessions
from services.gateway.core.jobs.service import Jobs, JobService
from services.gateway.errors import Problem, not_found, openai_error

_HEAD_WITHIN_S = 5.0  # a stream's status says what is wrong with a request, if it comes so soon
_SIGN_OF_LIFE_S = 3.0
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with stream=true server-sent events, at last `[DONE]`",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_ROUTE: dict[str, Any] = {
    "response_model": None,
    "responses": _STREAM,
    "dependencies": [CALLS],
}
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SessionName = Annotated[str, Path(pattern=sessions.NAME)]


async def session_name(session: SessionName) -> str:  # no thread is needed for it
    return session


_calls = APIRouter(tags=["calls"])
_sessions = APIRouter(prefix="/rollout/{session}", tags=["calls"])


def install(app: FastAPI, desk: Desk, kept: Sessions) -> None:
    app.state.desk, app.state.sessions = desk, kept
    app.include_router(_calls)
    app.include_router(_calls, prefix=_sessions.prefix, dependencies=[Depends(session_name)])
    app.include_router(_sessions)


@_calls.post("/v1/chat/completions", **_ROUTE)
async def chat(body: requests.ChatRequest, request: Request, jobs: Jobs) -> Response:
    """Answer a chat by a model, or by the policy that is trained."""
    return await _answer(Shape, body, request, jobs)


@_calls.post("/v1/completions", **_ROUTE)
async def complete(body: requests.CompletionRequest, request: Request, jobs: Jobs) -> Response:
    """Go on from a text, or from tokens."""
    return await _answer(Completion, body, request, jobs)


@_calls.post("/inference/v1/generate", **_ROUTE)
async def generate(body: requests.GenerateRequest, request: Request, jobs: Jobs) -> Response:
    """Go on from tokens, with tokens: vLLM's own route."""
    return await _answer(Generated, body, request, jobs)


@_sessions.put("")
async def open_session(session: SessionName, terms: Terms, request: Request) -> Json:
    """Open a session for an episode of the job that trains, whose terms hold for all its calls."""
    key = await asyncio.to_thread(request.app.state.sessions.open, session, terms)
    return {"id": session, "object": "rollout", "key": key}


@_sessions.get("")
async def get_session(session: SessionName, request: Request) -> JSONResponse:
    """The calls of a session, and their tokens, linked where one goes on from another."""
    return await asyncio.to_thread(lambda: JSONResponse(_kept(request, session).trace(session)))


@_sessions.delete("")
async def delete_session(session: SessionName, request: Request) -> JSONResponse:
    """Delete what was recorded, and tell it a last time."""
    return await asyncio.to_thread(lambda: JSONResponse(_kept(request, session).delete(session)))


def _kept(request: Request, session: str) -> Sessions:
    """The sessions; 403 if the key is the environment's, and this one is no episode's."""
    kept: Sessions = request.app.state.sessions
    if request.scope["key"].role == ENVIRONMENT and not kept.has_terms(session):
        why = f"session {session} has no terms; an environment's key is for its episodes alone"
        raise Problem(403, why, param="Authorization", code="insufficient_role")
    return kept


async def _answer(
    kind: type[Shape], body: requests.Request, request: Request, jobs: JobService
) -> Response:
    name, kept = request.path_params.get("session"), request.app.state.sessions
    session = await asyncio.to_thread(kept.find, name) if name else None
    key = request.scope["key"]
    if key.role == SESSION and (session is None or session.head.key != key.digest):
        raise not_found("session", str(name))  # it has ended, and perhaps begun anew
    terms = session.terms if session else None
    resolve = partial(weights_of, body.model, jobs)
    if terms is not None:
        resolve = partial(newest_of, terms.job_id, jobs)
    answer_id = f"{kind.PREFIX}-{secrets.token_hex(12)}"
    calls = body.calls(answer_id, jobs.exchange.me, await resolve())
    if name and session is None:
        session = await asyncio.to_thread(kept.begin, name)
    if session is not None:
        calls = [session.asked(call, body.sampled) for call in calls]
    news = asyncio.Event()
    answers = [Answer(call, resolve, news) for call in calls]
    if session is not None:
        session.begin(answers)
    looks = request.app.state.desk.answering(answers, partial(kept.record, name) if name else None)
    shape = kind(answer_id, body, answers)
    if not body.stream:
        await _until(looks, request)
        return await asyncio.to_thread(lambda: JSONResponse(shape.whole()))
    deadline = time.monotonic() + _HEAD_WITHIN_S
    await _until(looks, request, lambda: bool(answers[0].prompt_ids) or time.monotonic() > deadline)
    return StreamingResponse(_events(looks, shape), 200, _HEADERS, media_type="text/event-stream")


async def _until(
    looks: AsyncGenerator[None, None],
    request: Request,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until all is there, or enough; ClientDisconnect if nobody waits for it any more."""
    try:
        async for _ in looks:
            if is_enough():
                return
            if await request.is_disconnected():
                raise ClientDisconnect
    except BaseException:
        await looks.aclose()
        raise


async def _events(looks: AsyncGenerator[None, None], shape: Shape) -> AsyncIterator[str]:
    """Server-sent events: chunks as they come, and meanwhile comments with what is waited for."""
    told_at = time.monotonic()
    try:
        yield _sent(*shape.chunks())
        async for _ in looks:
            if chunks := [*shape.chunks()]:
                yield _sent(*chunks)
                told_at = time.monotonic()
            elif time.monotonic() - told_at > _SIGN_OF_LIFE_S:
                yield f": {shape.answers[0].doing or 'still here'}\n\n"
                told_at = time.monotonic()
        if shape.request.stream_options.include_usage:
            yield _sent(shape.usage_chunk())
        yield "data: [DONE]\n\n"
    except Problem as problem:
        yield _sent({"error": openai_error(problem).model_dump()})
    finally:
        await looks.aclose()


def _sent(*objects: Json) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in objects)
