"""Where the page lies: its files are open to all, and what they show comes over REST with a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.errors import from_lines
from services.gateway.jobs.service import JobService
from services.gateway.openai.body import Body
from services.gateway.page.latest import latest
from services.gateway.page.recipe_text import RecipeTextError, arithmetic, read_recipe

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asks each time whether it has changed: a release has no build
}

page = APIRouter(tags=["page"])


class RecipeText(Body):
    """A recipe as it lies in a file, TOML or JSON."""

    text: str = Field(max_length=64 * 1024)


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def install(app: FastAPI) -> None:
    """Serve the page at ``/`` and its files below ``/static``."""
    app.include_router(page)
    app.mount("/static", _PageFiles(directory=_STATIC))


@page.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
def index() -> FileResponse:
    """The page itself; it asks for a key."""
    return FileResponse(_STATIC / "index.html", headers=_HEADERS)


@page.post("/v1/page/recipe")
def parse_recipe_text(body: RecipeText) -> dict[str, Any]:
    """The recipe that a text holds, as it can be submitted, and what it asks for in numbers."""
    try:
        recipe = read_recipe(body.text)
    except RecipeTextError as error:
        raise from_lines(str(error).splitlines(), code="invalid_recipe") from error
    return {
        "object": "recipe",
        "recipe": recipe.model_dump(mode="json", exclude_unset=True),
        "plan": [{"name": name, "value": value} for name, value in arithmetic(recipe)],
    }


@page.get("/v1/page/jobs/{job_id}/latest")
async def latest_of_job(job_id: str, request: Request) -> dict[str, Any]:
    """The newest numbers of a job, for the list of all jobs."""
    jobs: JobService = request.app.state.jobs
    await jobs.find(job_id)
    return await latest(jobs.exchange, job_id)
