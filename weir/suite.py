"""Suites: a job for each model on the same files of tasks, and the results side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from protocol.recipe_files import RecipeError, Tables, load_tables
from protocol.tasks import TaskFileError, read_tasks

from weir.client import WeirClient
from weir.evaluations import Json, compare
from weir.names import find_model
from weir.stack import Stack, model_name

SUITES = Path(__file__).parent / "suites"
_JOB_AT_STEP = re.compile(r"(ftjob-[0-9a-f]{24})@(\d+)")
_NAME = re.compile(r"[\w-]+")
# Tables of training, which an evaluation does not read.
_IGNORED = {"algorithm", "critic", "optimizer", "machine", "client"}
_KEPT = {"seed", "max_failed"}  # of the table training


def load_suite(name: str) -> Tables:
    """Read a suite, or a recipe as one: a TOML file, or the name of one in `weir/suites`.

    Raises:
        RecipeError: if there is none, or it evaluates nothing.
    """
    path = Path(name)
    if not path.exists() and _NAME.fullmatch(name):
        path = SUITES / f"{name}.toml"
    if not path.exists():
        stems = sorted(suite.stem for suite in SUITES.glob("*.toml"))
        names = ", ".join(stems)
        raise RecipeError(f"{name}: no such file, and no suite; the suites are: {names}")
    tables = load_tables(path)
    if "evaluation" not in tables:
        raise RecipeError(f"{path}: evaluation: missing; add the table, with the files to measure")
    return {"name": path.stem, **tables}


def build_body(weir: WeirClient, suite: Tables) -> Tables:
    """Upload a suite's files; return the body of a job that measures a model, without ``model``.

    Raises:
        TaskFileError: if a file of tasks cannot be read.
    """
    recipe = deepcopy(suite)
    for name in _IGNORED & recipe.keys():
        del recipe[name]
    for name in ("path", "lora"):
        recipe.get("model", {}).pop(name, None)
    training = recipe.setdefault("training", {})
    for name in training.keys() - _KEPT:
        del training[name]
    training["steps"] = 0
    body: Tables = {}
    held_out = recipe.pop("tasks", {}).get("held_out")
    if held_out:
        body["validation_file"] = _upload(weir, held_out, "tasks.held_out")
    for name, other in recipe["evaluation"].get("others", {}).items():
        field = f"evaluation.others.{name}.held_out"
        other["held_out"] = _upload(weir, other.get("held_out", ""), field)
        body.setdefault("training_file", other["held_out"])
    body.setdefault("training_file", body.get("validation_file"))
    return {**body, "recipe": recipe}


def _upload(weir: WeirClient, file: str, field: str) -> str:
    path = Path(file)
    try:
        read_tasks(path)
    except TaskFileError as error:
        problems = [f"{field}: {problem}" for problem in error.problems]
        raise TaskFileError(problems) from error
    return weir.upload(path)


def resolve_model(weir: WeirClient, stack: Stack, name: str) -> str:
    """Return the model of a job's body: a listed name, a folder, a job's id, or a checkpoint's."""
    if weir.has_model(name):
        return name
    folder = model_name(stack, name)
    if folder != name:
        return folder
    found_name = find_model(weir, name)
    match = _JOB_AT_STEP.fullmatch(found_name)
    if match is None:
        return found_name
    return f"ftckpt-{match[1]}-{int(match[2])}"


def report(suite: Tables, results: Iterable[Json]) -> Json:
    """Return the results of all models, and the differences of each model to the first.

    Each result has its ``model`` and ``job``; ``name`` is that of a file of tasks.
    """
    rows = list(results)
    return {
        "suite": suite["name"],
        "results": rows,
        "differences": list(_differences(rows)),
    }


def _differences(results: Sequence[Json]) -> Iterator[Json]:
    first: dict[str, Json] = {}
    for result in results:
        name = result.get("name", "")
        baseline = first.setdefault(name, result)
        comparison = None if baseline is result else compare(baseline, result)
        if comparison is not None:
            yield {
                "model": result["model"],
                "against": baseline["model"],
                "name": name,
                **vars(comparison),
            }


def label_results(model: str, job: Mapping[str, Any], results: Iterable[Json]) -> Iterator[Json]:
    for result in results:
        yield {"model": model, "job": job["id"], **result}
