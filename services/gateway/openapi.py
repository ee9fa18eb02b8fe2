"""The OpenAPI document: FastAPI's, with the key that a route needs and all that it can answer."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from services.gateway.errors import ProblemDetails

_EVERY_ROUTE = (401, 403, 503)
_WITH_BODY = (400, 408, 413, 415, 507)
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", "content": _BYTES},
    206: {"description": "The part of it that Range asked for", "content": _BYTES},
    416: {"description": "The file is shorter", "content": {"text/plain": {}}},
}
_EVENT = {  # of the stream, as its reader takes it apart
    "type": "object",
    "properties": {"id": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; with stream=true server-sent events, each an `id` and an event of "
        "such a page as `data`, and `[DONE]` at the end",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},
    }
}
METADATA: dict[str, Any] = {  # the names are the client's, so they are read from the query
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "style": "deepObject",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ]
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route refuses beside what every route does, for its ``responses``."""
    return {status: _problem(status) for status in statuses}


def install(app: FastAPI) -> None:
    """Describe ``app`` at /openapi.json."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(make())
        return app.openapi_schema or {}

    app.openapi = openapi


def _complete(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's shape of errors
        schemas.pop(unused, None)
    problem = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {"ProblemDetails": problem}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [{"key": []}]
            for status in _refusals(path, operation):
                operation["responses"].setdefault(str(status), _problem(status))


def _refusals(path: str, operation: dict[str, Any]) -> Iterator[int]:
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):  # which is a 400 here
        del responses["422"]
        yield 400
    if "requestBody" in operation:
        yield from _WITH_BODY
    if "{" in path:
        yield 404
    yield from _EVERY_ROUTE


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": schema}},
    }
