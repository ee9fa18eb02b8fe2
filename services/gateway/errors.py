"""Every error of the REST surface: problem details (RFC 9457) that also carry OpenAI's ``error``.

The OpenAI SDK reads ``error{message,type,code,param}`` and raises its own typed exceptions; any
other client reads ``title``, ``status``, ``detail``. Both are in one body.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from protocol.operations import DamagedFile
from protocol.recipe import explain
from protocol.tasks import shown
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

T = TypeVar("T")
PATIENCE_S = 3.0
_RETRY_AFTER_S = 2
NO_RETRY = {"x-should-retry": "false"}  # for the OpenAI SDK, which tries a 409 again by itself
_MAX_DETAIL_CHARS = 10_000  # it may quote what was sent
_PLACES = ("body.", "query.", "header.", "path.")
# Parts of OpenAI's API that are not here, and what to do instead.
_FEATURES = {
    "chat/completions": "an answer is given once and not kept; POST /v1/chat/completions asks",
    "responses": "use POST /v1/chat/completions",
    "embeddings": "no model of embeddings is trained here; use a server that has one",
    "uploads": "a file has at most 100 MiB; send it whole with POST /v1/files",
    "batches": "each request is answered at once; send them one by one",
    "evals": "give the job a validation_file; its evaluations are among its events",
    "fine_tuning/checkpoints": "a gateway has no projects to share one with; each of its keys "
    "reads every checkpoint",
}
_SCHEMAS = "#/components/schemas/"
_CONTENT = {"application/problem+json": {"schema": {"$ref": f"{_SCHEMAS}ProblemDetails"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {  # of every route, at /openapi.json
    "4XX": {"description": "The request is wrong", "content": _CONTENT},
    "5XX": {"description": "The gateway cannot answer", "content": _CONTENT},
}


class OpenAIError(BaseModel):
    """What the OpenAI SDK reads of an error."""

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
    """A request that cannot be served: the message says what to do, ``param`` names the field."""

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


def wrong(param: str, why: str, *, code: str = "invalid_value") -> Problem:
    """400 for one field."""
    return Problem(400, f"{param}: {why}", param=param, code=code)


def not_found(kind: str, name: str) -> Problem:
    return Problem(404, f"there is no {kind} {name!r}", param="id", code="not_found")


def too_large(param: str, max_bytes: int) -> Problem:
    message = f"{param}: larger than the limit of {max_bytes:,} bytes; split it or leave tasks out"
    return Problem(413, message, param=param, code="too_large")


def no_model(message: str) -> Problem:
    return Problem(404, message, param="id", code="no_model")


def conflict(message: str, *, param: str) -> Problem:
    return Problem(409, message, param=param, code="conflict", headers=NO_RETRY)


def from_lines(lines: list[str], *, code: str, param: str | None = None) -> Problem:
    """400 for problems written as ``field: what is wrong``; the first one names ``param``."""
    return Problem(400, "\n".join(lines), param=param or lines[0].partition(":")[0], code=code)


async def in_time(work: Awaitable[T], wait_s: float = 0.0) -> T:
    """Wait for the exchange, and ``wait_s`` more that it may itself wait for an answer to be there.

    Raises:
        Problem: 503 with Retry-After, after ``PATIENCE_S`` without an answer.
    """
    try:
        async with asyncio.timeout(wait_s + PATIENCE_S):
            return await work
    except TimeoutError as error:
        raise Problem(
            503,
            f"Redis did not answer within {PATIENCE_S:g} s: it is away, or its memory or its "
            "disk is full; the request may be repeated",
            code="exchange_unavailable",
            headers={"Retry-After": str(_RETRY_AFTER_S)},
        ) from error


def own_fault(error: Exception) -> Problem:
    """500 for what nobody expected, 507 for a disk that is full or broken."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        message = "the disk below WEIR_DATA_DIR is full; make room there, and repeat the request"
        return Problem(507, message, code="disk_full")
    if isinstance(error, OSError) and error.errno in {errno.EROFS, errno.EIO, errno.ESTALE}:
        why = f"the disk below WEIR_DATA_DIR does not work: {error.strerror}"
        return Problem(507, f"{why}; mend it, and repeat the request", code="disk_broken")
    if isinstance(error, DamagedFile):
        return Problem(500, str(error), code="damaged_file")
    message = f"the gateway failed: {type(error).__name__}; its log has the details"
    return Problem(500, message, code="internal_error")


def openai_error(problem: Problem) -> OpenAIError:
    return OpenAIError(
        message=shown(problem.detail[:_MAX_DETAIL_CHARS]),
        type="invalid_request_error" if problem.status_code < 500 else "server_error",
        code=problem.code,
        param=problem.param and shown(problem.param[:_MAX_DETAIL_CHARS]),
    )


def respond(problem: Problem) -> JSONResponse:
    status, error = problem.status_code, openai_error(problem)
    body = ProblemDetails(
        title=HTTPStatus(status).phrase, status=status, detail=error.message, error=error
    )
    return JSONResponse(
        body.model_dump(), status, problem.headers, media_type="application/problem+json"
    )


async def refuse_unknown_query(request: Request) -> None:
    """400 for a name in the query that /openapi.json does not have for the route."""
    known = _query_names(request.app)
    route = f"{request.method.lower()} {request.scope['route'].path}"
    for name in request.query_params:
        if name.partition("[")[0] not in known.get(route, {name.partition("[")[0]}):
            raise wrong(name, "unknown; remove it from the query or check its spelling")


@lru_cache(maxsize=1)
def _query_names(app: FastAPI) -> dict[str, set[str]]:
    return {
        f"{method} {path}": {
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
        }
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    }


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` in that shape; ``Measured`` answers the unexpected ones."""
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
    """One line per problem, ``field: what is wrong``, with the field's dotted name in the body."""
    if any(problem["type"] == "json_invalid" for problem in error.errors()):
        return ["body: not valid JSON"]
    lines = []
    for line in explain(error).splitlines():  # type: ignore[arg-type]  (both have .errors())
        place = next((place for place in _PLACES if line.startswith(place)), "")
        lines.append(line.removeprefix(place))
    if lines[0].startswith("body: Input should be"):
        return ["body: must be a JSON object, sent with Content-Type: application/json"]
    return lines


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Problem):
        return respond(error)
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    param = "body" if error.status_code == HTTPStatus.BAD_REQUEST else None  # it was not readable
    headers = dict(error.headers or {})
    message = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and (remedy := _remedy_for(request.url.path)):
        message, code = remedy, "not_supported"
    return respond(Problem(error.status_code, message, param=param, code=code, headers=headers))


async def _on_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return respond(from_lines(explain_body(error), code="invalid_request"))


def _remedy_for(path: str) -> str | None:
    """What to do instead, for a path below /v1 of OpenAI's API that has no route; else None."""
    own = path.removeprefix("/v1/")
    features = (name for name in _FEATURES if own == name or own.startswith(f"{name}/"))
    feature = next(features, None)
    return f"{feature} is not supported: {_FEATURES[feature]}" if feature else None
