"""Errors of the REST API: problem details (RFC 9457) that also have OpenAI's ``error``.

The OpenAI SDK reads ``error{message,type,code,param}`` and raises typed exceptions; other clients
read ``title``, ``status`` and ``detail``.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from protocol.operations import DamagedFile
from protocol.recipe_files import explain
from protocol.tasks import escape_surrogates, explain_json
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

T = TypeVar("T")
EXCHANGE_TIMEOUT_S = 3.0
RETRY_AFTER_S = 2
MAX_DETAIL_CHARS = 10_000  # a message may quote the request
NO_RETRY = {"x-should-retry": "false"}  # the OpenAI SDK would retry a 409 by itself
_LOCATIONS = ("body.", "query.", "header.", "path.")
# Fields of OpenAI's calls.
_UNSUPPORTED_FIELDS = {
    "frequency_penalty",
    "logit_bias",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "tool_choice",
}
# Parts of OpenAI's API that Weir lacks, and the remedies.
_UNSUPPORTED = {
    "chat/completions": "completions are not stored; use POST /v1/chat/completions",
    "responses": "use POST /v1/chat/completions",
    "embeddings": "Weir trains no embedding models; use a server that has one",
    "uploads": "a file has at most 100 MiB; send it whole with POST /v1/files",
    "batches": "send the requests one by one",
    "evals": "give the job a validation_file; its evaluations are among its events",
    "fine_tuning/checkpoints": "there are no projects to share a checkpoint with; every key of "
    "the gateway reads every checkpoint",
}
_SCHEMAS = "#/components/schemas/"
_CONTENT = {"application/problem+json": {"schema": {"$ref": f"{_SCHEMAS}ProblemDetails"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {  # of every route, in /openapi.json
    "4XX": {"description": "The request is wrong", "content": _CONTENT},
    "5XX": {"description": "The gateway cannot respond", "content": _CONTENT},
}


class OpenAIError(BaseModel):
    """The part of an error that the OpenAI SDK reads."""

    message: str
    type: str
    code: str
    param: str | None


class ProblemDetails(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: OpenAIError


class Problem(HTTPException):
    """An error response: ``param`` names the field, the message says what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param = param
        self.code = code


def wrong(param: str, reason: str, *, code: str = "invalid_value") -> Problem:
    """400 for one field."""
    return Problem(400, f"{param}: {reason}", param=param, code=code)


def not_found(kind: str, name: str) -> Problem:
    return Problem(404, f"there is no {kind} {name!r}", param="id", code="not_found")


def too_large(param: str, max_bytes: int) -> Problem:
    message = f"{param}: must have at most {max_bytes:,} bytes; split it or leave tasks out"
    return Problem(413, message, param=param, code="too_large")


def no_model(message: str) -> Problem:
    return Problem(404, message, param="id", code="no_model")


def conflict(message: str, *, param: str) -> Problem:
    return Problem(409, message, param=param, code="conflict", headers=NO_RETRY)


def from_lines(lines: list[str], *, code: str, param: str | None = None) -> Problem:
    """400 for lines ``field: problem``; the first one names ``param``."""
    return Problem(400, "\n".join(lines), param=param or lines[0].partition(":")[0], code=code)


async def await_exchange(work: Awaitable[T], wait_s: float = 0.0) -> T:
    """Return the result of a request to the exchange, which may itself wait for ``wait_s``.

    Raises:
        Problem: 503 with Retry-After, if no response comes ``EXCHANGE_TIMEOUT_S`` after that.
    """
    try:
        async with asyncio.timeout(wait_s + EXCHANGE_TIMEOUT_S):
            return await work
    except TimeoutError as error:
        raise Problem(
            503,
            f"Redis did not respond within {EXCHANGE_TIMEOUT_S:g} s: it is down, or its memory or "
            "its disk is full; retry the request",
            code="exchange_unavailable",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from error


def internal_problem(error: Exception) -> Problem:
    """500 for an unexpected error, 507 for a full or broken disk."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        message = "the disk below WEIR_DATA_DIR is full; free some space, and retry the request"
        return Problem(507, message, code="disk_full")
    if isinstance(error, OSError) and error.errno in {errno.EROFS, errno.EIO, errno.ESTALE}:
        reason = f"the disk below WEIR_DATA_DIR is broken: {error.strerror}"
        return Problem(507, f"{reason}; repair it, and retry the request", code="disk_broken")
    if isinstance(error, DamagedFile):
        return Problem(500, str(error), code="damaged_file")
    message = f"the gateway failed: {type(error).__name__}; its log has the details"
    return Problem(500, message, code="internal_error")


def openai_error(problem: Problem) -> OpenAIError:
    return OpenAIError(
        message=escape_surrogates(problem.detail[:MAX_DETAIL_CHARS]),
        type="invalid_request_error" if problem.status_code < 500 else "server_error",
        code=problem.code,
        param=problem.param and escape_surrogates(problem.param[:MAX_DETAIL_CHARS]),
    )


def respond(problem: Problem) -> JSONResponse:
    status = problem.status_code
    error = openai_error(problem)
    body = ProblemDetails(
        title=HTTPStatus(status).phrase, status=status, detail=error.message, error=error
    )
    return JSONResponse(
        body.model_dump(), status, problem.headers, media_type="application/problem+json"
    )


async def refuse_unknown_query(request: Request) -> None:
    """400 for a query parameter that the route does not have in /openapi.json."""
    route = f"{request.method.lower()} {request.scope['route'].path}"
    names = _query_names(request.app).get(route)
    for param in request.query_params:
        if names is not None and param.partition("[")[0] not in names:
            raise wrong(param, "unknown; remove it from the query or check its spelling")


@lru_cache(maxsize=1)
def _query_names(app: FastAPI) -> dict[str, set[str]]:
    names = {}
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            params = operation.get("parameters", ())
            names[f"{method} {path}"] = {
                param["name"] for param in params if param["in"] == "query"
            }
    return names


def install(app: FastAPI) -> None:
    """Respond to every error of ``app`` in that shape. ``Measured`` handles unexpected errors."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


def describe(app: FastAPI) -> None:
    """Add the schema of ``RESPONSES`` to /openapi.json."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schema = ProblemDetails.model_json_schema(ref_template=_SCHEMAS + "{model}")
        document["components"]["schemas"] |= schema.pop("$defs") | {"ProblemDetails": schema}
        return document

    app.openapi = openapi


def explain_body(error: ValidationError | RequestValidationError) -> list[str]:
    """Return one line per problem, ``field: problem``, with the field's dotted name."""
    if isinstance(error.__cause__, json.JSONDecodeError):
        return [f"body: {explain_json(error.__cause__)}"]
    lines = []
    for line in explain(error).splitlines():  # type: ignore[arg-type]  (both have .errors())
        location = next((prefix for prefix in _LOCATIONS if line.startswith(prefix)), "")
        text = line.removeprefix(location)
        field, _, problem = text.partition(": ")
        if field in _UNSUPPORTED_FIELDS and problem.startswith("unknown key"):
            text = f"{field}: not supported here; remove it"
        lines.append(text)
    if lines[0].startswith("body: Input should be"):
        return ["body: must be a JSON object, sent with Content-Type: application/json"]
    return lines


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Problem):
        return respond(error)
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    # FastAPI raises 400 if it cannot read the body.
    param = "body" if error.status_code == HTTPStatus.BAD_REQUEST else None
    headers = dict(error.headers or {})
    message = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        remedy = _find_remedy(request.url.path)
        if remedy is not None:
            message = remedy
            code = "not_supported"
    return respond(Problem(error.status_code, message, param=param, code=code, headers=headers))


async def _on_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return respond(from_lines(explain_body(error), code="invalid_request"))


def _find_remedy(path: str) -> str | None:
    """Return the remedy for a path of OpenAI's API that has no route; None for another path."""
    name = path.removeprefix("/v1/")
    for feature, remedy in _UNSUPPORTED.items():
        if name == feature or name.startswith(f"{feature}/"):
            return f"{feature} is not supported: {remedy}"
    return None
