"""The page's files, which are public, and routes for its data, which need a key."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from protocol.exchange import Exchange
from protocol.messages import EvaluationMetrics, OtherEvaluation, StepMetrics
from protocol.recipe import parse_recipe
from protocol.recipe_files import RecipeError, load_tables
from protocol.tasks import TaskFileError, raw_lines, valid_tasks
from pydantic import Field, JsonValue
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.api.dependencies import Jobs
from services.gateway.api.openai.body import Body
from services.gateway.api.page.recipe_text import RecipeTextError, plan_rows, read_recipe
from services.gateway.core.files.store import content_id
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import await_exchange, from_lines

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers revalidate: the files' names stay in a new release
}
_RECIPES = Path("recipes")  # in the gateway's working directory
EVENTS_PER_READ = 100
MAX_EVENTS = 1000  # older evaluations are not found
CURVE_STEPS = 40
MAX_PROMPTS = 20_000
PROMPT_CHARS = 200

page = APIRouter(tags=["page"])


class RecipeText(Body):
    """The text of a recipe file, TOML or JSON."""

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
    """The recipe of a text, as it can be submitted, and its numbers of steps and tokens."""
    try:
        recipe = read_recipe(body.text)
    except RecipeTextError as error:
        raise from_lines(str(error).splitlines(), code="invalid_recipe") from error
    return {
        "object": "recipe",
        "recipe": recipe.model_dump(mode="json", exclude_unset=True),
        "changed": recipe.model_dump(mode="json", exclude_defaults=True),
        "plan": [{"name": name, "value": value} for name, value in plan_rows(recipe)],
    }


@page.get("/v1/page/recipes")
def example_recipes() -> dict[str, Any]:
    """The recipes in the folder `recipes` of the gateway's working directory, if there is one."""
    files = sorted(_RECIPES.rglob("*.toml"), key=lambda path: (len(path.parts), path))
    return {"object": "list", "data": [*_load_examples(files)]}


def _load_examples(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the text of each recipe, or its tables if it extends others: a text cannot do that.

    ``files`` has the ids of its task files that are here, as they would be after an upload.
    """
    for path in files:
        try:
            tables = load_tables(path)
            recipe = parse_recipe(tables)
        except RecipeError:  # such as a file that only others extend
            continue
        name = path.relative_to(_RECIPES).as_posix()
        text = path.read_text("utf-8")
        named = recipe.task_fields.values()
        ids = {file: content_id(Path(file)) for file in named if Path(file).is_file()}
        if tables == tomllib.loads(text):
            yield {"name": name, "text": text, "files": ids}
        else:
            yield {"name": name, "recipe": tables, "files": ids}


@page.get("/v1/page/jobs/{job_id}/latest")
async def get_latest(job_id: str, request: Request) -> dict[str, Any]:
    """The metrics of a job's last step, its last evaluation, and the rewards of its last steps."""
    jobs: JobService = request.app.state.jobs
    await jobs.find(job_id)
    steps, evaluation = await _read_newest(jobs.exchange, job_id)
    return {
        "object": "fine_tuning.job.latest",
        "metrics": steps[0].to_json() if steps else None,
        "evaluation": evaluation,
        "rewards": [step.metrics.get("reward") for step in reversed(steps[:CURVE_STEPS])],
    }


@page.get("/v1/page/jobs/{job_id}/held_out")
async def get_held_out_prompts(job_id: str, jobs: Jobs) -> dict[str, Any]:
    """The beginnings of a job's held-out prompts by task; none if the file was deleted."""
    record = await jobs.get(job_id)
    file_id = record.recipe.tasks.held_out
    prompts: dict[str, str] = {}
    if file_id and jobs.files.find(file_id):
        prompts = await asyncio.to_thread(_read_prompts, jobs.files.path(file_id))
    return {"object": "prompts", "data": prompts}


def _read_prompts(path: Path) -> dict[str, str]:
    with suppress(OSError, TaskFileError), path.open("rb") as file:
        tasks = islice(valid_tasks(raw_lines(file)), MAX_PROMPTS)
        return {task.id: task.problem[:PROMPT_CHARS] for task in tasks}
    return {}


async def _read_newest(
    exchange: Exchange, job_id: str
) -> tuple[list[StepMetrics], dict[str, JsonValue] | None]:
    """Return the last steps, newest first, and the last evaluation, None if there is none yet."""
    steps: list[StepMetrics] = []
    evaluation: dict[str, JsonValue] | None = None
    other: dict[str, JsonValue] | None = None  # a suite may have only named files
    before: str | None = None
    for _ in range(0, MAX_EVENTS, EVENTS_PER_READ):
        read = exchange.events_back(job_id, before=before, count=EVENTS_PER_READ)
        rows = await await_exchange(read)
        for _, event in rows:
            if isinstance(event.data, StepMetrics):
                steps.append(event.data)
            elif isinstance(event.data, EvaluationMetrics) and evaluation is None:
                evaluation = event.data.evaluation.to_json()
            elif isinstance(event.data, OtherEvaluation):
                other = other or event.data.other_evaluation.to_json()
        if len(rows) < EVENTS_PER_READ or (steps and evaluation):
            break
        before = rows[-1][0]
    evaluation = evaluation or other
    if evaluation is not None:
        evaluation.pop("per_task", None)
    return steps, evaluation
