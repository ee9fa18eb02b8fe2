"""Where the page lies: its files are open to all, and what they show comes over REST with a key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from protocol.exchange import Exchange
from protocol.messages import EvaluationMetrics, StepMetrics
from protocol.recipe import RecipeError, load_tables, parse_recipe
from pydantic import Field, JsonValue
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.api.openai.body import Body
from services.gateway.api.page.recipe_text import RecipeTextError, arithmetic, read_recipe
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import await_exchange, from_lines

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asks each time whether it has changed: a release has no build
}
_RECIPES = Path("recipes")  # where the gateway runs, as `weir run recipes/demo.toml` names them
_AT_ONCE = 100
_FURTHEST = 1000  # events; an evaluation longer ago is not looked for
_CURVE = 40  # steps

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
    app.include_router(page)
    app.mount("/static", _PageFiles(directory=_STATIC))


@page.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
def index() -> FileResponse:
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
        "changed": recipe.model_dump(mode="json", exclude_defaults=True),
        "plan": [{"name": name, "value": value} for name, value in arithmetic(recipe)],
    }


@page.get("/v1/page/recipes")
def example_recipes() -> dict[str, Any]:
    """The recipes in the folder `recipes` where the gateway runs, if there is one."""
    files = sorted(_RECIPES.rglob("*.toml"), key=lambda path: (len(path.parts), path))
    return {"object": "list", "data": [*_load_examples(files)]}


def _load_examples(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The text of each recipe; of one that extends others, which a text cannot, its tables."""
    for path in files:
        try:
            tables = load_tables(path)
            parse_recipe(tables)
        except RecipeError:  # such as a file that only others extend
            continue
        name, text = path.relative_to(_RECIPES).as_posix(), path.read_text("utf-8")
        is_whole = tables == tomllib.loads(text)
        yield {"name": name, "text": text} if is_whole else {"name": name, "recipe": tables}


@page.get("/v1/page/jobs/{job_id}/latest")
async def latest_of_job(job_id: str, request: Request) -> dict[str, Any]:
    """The metrics of a job's last step, its last evaluation, and the rewards of its last steps."""
    jobs: JobService = request.app.state.jobs
    await jobs.find(job_id)
    steps, evaluation = await _newest(jobs.exchange, job_id)
    return {
        "object": "fine_tuning.job.latest",
        "metrics": steps[0].to_json() if steps else None,
        "evaluation": evaluation,
        "rewards": [step.metrics.get("reward") for step in reversed(steps[:_CURVE])],
    }


async def _newest(
    exchange: Exchange, job_id: str
) -> tuple[list[StepMetrics], dict[str, JsonValue] | None]:
    """Return the last steps, newest first, and the last evaluation, None if there is none yet."""
    steps: list[StepMetrics] = []
    evaluation: dict[str, JsonValue] | None = None
    before: str | None = None
    for _ in range(0, _FURTHEST, _AT_ONCE):
        rows = await await_exchange(exchange.events_back(job_id, before=before, count=_AT_ONCE))
        for _, event in rows:
            if isinstance(event.data, StepMetrics):
                steps.append(event.data)
            elif isinstance(event.data, EvaluationMetrics) and evaluation is None:
                evaluation = event.data.evaluation.to_json()
                evaluation.pop("per_task", None)
        if len(rows) < _AT_ONCE or (steps and evaluation):
            break
        before = rows[-1][0]
    return steps, evaluation
