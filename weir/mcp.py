"""An MCP server over standard input and output, by which coding agents use a stack.

The tools call routes of the gateway, with the rights of the client's key.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import protocol
from protocol.recipe import load_recipe
from protocol.recipe_files import RecipeError
from pydantic import Field

from weir.client import WeirError
from weir.names import find_job
from weir.stack import NoStack, connected, find_stack, model_name
from weir.views import find_evaluations

if TYPE_CHECKING:
    from mcp.server import MCPServer

Json = dict[str, Any]
JobName = Annotated[
    str | None, Field(description="Id, its beginning, or name. Default: the running or newest job.")
]
RecipePath = Annotated[
    str, Field(description="A TOML file. Its paths are relative to the server's current folder.")
]
Limit = Annotated[int, Field(ge=1, le=200)]


def plan(recipe: RecipePath) -> Json:
    """Compute the memory, time and problems of a recipe on this machine; submits nothing."""
    path = str(Path(recipe).absolute())
    result = subprocess.run(
        (sys.executable, "-m", "weir", "plan", path, "--json"),
        stdin=subprocess.DEVNULL,  # the server's is the protocol
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.stdout:
        raise WeirError(result.stderr.strip())
    return json.loads(result.stdout)


def submit(recipe: RecipePath) -> Json:
    """Upload the task files of a recipe and submit its job; returns at once with the job."""
    checked = load_recipe(Path(recipe).absolute())
    stack = find_stack()
    with connected(stack) as weir:
        return weir.submit_recipe(checked, model=model_name(stack, checked.model.path))


def watch(job: JobName = None, after: str | None = None, limit: Limit = 50) -> Json:
    """Return a job's status, and its events until now after the one with the id `after`."""
    with connected() as weir:
        job_id = find_job(weir, job)
        # Read before the events, so that all are there once the status is final.
        status = weir.job(job_id)["status"]
        events = list(islice(weir.past_events(job_id, after=after), limit))
        return {"id": job_id, "status": status, "events": events}


def why(job: JobName = None) -> Json:
    """Return whether a job moves, its reason to wait, and the activity of each process."""
    with connected() as weir:
        return weir.why(find_job(weir, job))


def samples(
    job: JobName = None,
    step: int | None = None,
    correct: bool | None = None,
    text: Annotated[str | None, Field(description="In the response, in any case.")] = None,
    limit: Limit = 10,
) -> list[Json]:
    """Return a job's newest samples with their prompts, responses and scores."""
    options = {"step": step, "correct": correct, "text": text}
    query = {name: value for name, value in options.items() if value is not None}
    with connected() as weir:
        return list(islice(weir.samples(find_job(weir, job), limit=limit, **query), limit))


def evaluations(job: JobName = None) -> list[Json]:
    """Return a job's results on held-out tasks, oldest first, without those of each task."""
    with connected() as weir:
        results = find_evaluations(weir.past_events(find_job(weir, job)))
    return [{**result, "per_task": None} for result in results]


def run_server() -> None:
    """Answer an MCP client until standard input ends.

    Raises:
        WeirError: if the SDK of MCP is not installed.
    """
    _build_server().run()


def _build_server() -> MCPServer:
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise WeirError(f"{error}; install the SDK of MCP: `pip install 'weir[mcp]'`") from error

    def report_errors(tool: Callable[..., Any]) -> Callable[..., str]:
        @wraps(tool)
        def call(**arguments: Any) -> str:
            try:
                return json.dumps(tool(**arguments), ensure_ascii=False)
            except (RecipeError, NoStack, WeirError, OSError) as error:
                raise ToolError(str(error)) from error

        return call

    server = MCPServer("weir", version=protocol.__version__, log_level="WARNING")
    for tool in (plan, submit, watch, why, samples, evaluations):
        annotations = ToolAnnotations(read_only_hint=tool is not submit)
        server.tool(annotations=annotations, structured_output=False)(report_errors(tool))
    return server
