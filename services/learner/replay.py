"""``weir replay JOB --step N``: grade the groups of a step again, and show what changes.

It reads the job's sample store and needs neither the stack nor the models. The fates of groups
stay, although another recipe might have used other groups.

Exit status: 0 it was shown; 1 the job's recipe gives other values than before; 2 the input was
wrong, or the groups could not be graded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from protocol.frames import FrameError, decode, encode, pack, unpack_all
from protocol.messages import ActiveJob, Grade, GradedGroup, Message, Score
from protocol.recipe import Purpose, Recipe, load_recipe
from protocol.recipe_files import RecipeError
from protocol.samples import RECIPE, step_files
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from services.chassis.deployment import (
    DeploymentError,
    home_dir,
    import_extensions,
    read_variable,
    split_list,
)
from services.learner.algorithms import UnknownName
from services.learner.durable.sample_rows import Row, build_rows, parse_graded, read_groups
from services.learner.formulas import check_formulas
from services.learner.training.scoring import ScoredGroup, Scoring

SHOWN = 0
DIFFERENT = 1
BAD_INPUT = 2
_GRADER = "services.grader.offline.replay"
_COLUMNS = {
    "outcome": "outcome",
    "process": "process",
    "reward": "reward",
    "outcome_advantage": "A_out",
    "process_advantage": "A_proc",
    "advantage": "advantage",
}
_SCORES = ("outcome", "process")
# A narrow terminal wraps the lines of a table this wide, and cuts nothing.
_TABLE_COLUMNS = 10_000


class CannotReplay(Exception):
    """The step cannot be graded again; the text says why, and the remedy."""


@dataclass(frozen=True)
class Response:
    """A response of the step, with its values from the job and from the recipe now."""

    key: str
    index: int
    fate: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def changed(self, name: str) -> bool:
        """Whether a value has changed, or the reason of an outcome or a process score."""
        names = (name, f"{name}_reason")
        return any(self.before.get(n) != self.after.get(n) for n in names)

    @property
    def has_changed(self) -> bool:
        return self.before != self.after


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        folder = _samples_folder(options.job)
        import_extensions("WEIR_EXTENSIONS", split_list(os.environ.get("WEIR_EXTENSIONS", "")))
        recipe = load_recipe(Path(options.recipe)) if options.recipe else _load_job_recipe(folder)
        check_formulas(recipe)
        groups = read_step(folder, options.step)
        responses = replay(groups, recipe)
    except (RecipeError, CannotReplay, UnknownName, DeploymentError, FrameError, OSError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    summary = _summarize(responses, groups, recipe)
    if options.json:
        print(json.dumps({**summary, "responses": [asdict(r) for r in responses]}, indent=1))
    else:
        _show(summary, responses, recipe, is_job_recipe=not options.recipe)
    is_different = any(response.has_changed for response in responses)
    return DIFFERENT if is_different and not options.recipe else SHOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir replay",
        description="Grade the groups of a step again, and show what changes. It reads the stack's "
        "data folder: WEIR_DATA_DIR, or that of `weir up`. It asks the judge at WEIR_JUDGE_URL.",
    )
    parser.add_argument("job", metavar="JOB")
    parser.add_argument(
        "--step", type=int, required=True, metavar="N", help="as `weir samples` counts, from 0"
    )
    parser.add_argument("--recipe", metavar="FILE", help="to grade by; default: the job's recipe")
    parser.add_argument("--json", action="store_true", help="every response, machine-readable")
    return parser


def read_step(folder: Path, step: int) -> list[list[Row]]:
    """Return the rows of each group of a step, from the last attempt that made the step.

    Raises:
        CannotReplay: if there are none.
        OSError: naming the file that is damaged.
    """
    files = step_files(folder)
    matches = sorted((file for file in files if file.step == step), key=lambda file: file.purpose)
    if not matches:
        steps = f"only of steps {files[0].step} to {files[-1].step}" if files else "nor of others"
        raise CannotReplay(f"{folder} has no samples of step {step}, {steps}")
    groups = [rows for file in matches for rows in read_groups(folder / file.name)]
    if any(row["failure"] is None and row["grade"] is None for rows in groups for row in rows):
        raise CannotReplay(f"{folder}: a client sent the rewards of step {step}; it has no grades")
    return groups


def replay(groups: Sequence[list[Row]], recipe: Recipe) -> list[Response]:
    """Grade every response of the groups that did not fail by a recipe.

    Raises:
        CannotReplay: if they cannot be graded.
    """
    whole = [rows for rows in groups if rows[0]["failure"] is None]
    scoring = Scoring.of(recipe)
    responses: list[Response] = []
    for rows, graded in zip(whole, regrade(whole, recipe), strict=True):
        for old, new in zip(rows, _score_again(rows, graded, scoring), strict=True):
            before = _row_values(old)
            after = _row_values(new)
            responses.append(Response(old["key"], old["index"], old["fate"], before, after))
    return responses


def _score_again(rows: list[Row], graded: GradedGroup, scoring: Scoring) -> list[Row]:
    if graded.purpose is Purpose.EVAL:
        scoring = scoring.comparison_only
    step = {name: rows[0][name] for name in ("attempt", "step", "created_at")}
    return next(build_rows([ScoredGroup(graded, scoring, rows[0]["fate"])], {}, **step))


def regrade(groups: Sequence[list[Row]], recipe: Recipe) -> list[GradedGroup]:
    """Grade groups in a process of the grader, since services do not import each other."""
    messages: list[Message] = [ActiveJob(job_id="replay", attempt=1, recipe=recipe)]
    for rows in groups:
        rollout_group = parse_graded(rows).group
        if rollout_group is not None:
            messages.append(rollout_group)
    frames = b"".join(pack(encode(message)) for message in messages)
    command = [sys.executable, "-m", _GRADER]
    process = subprocess.run(command, input=frames, stdout=subprocess.PIPE)
    if process.returncode != 0:
        raise CannotReplay(
            f"the groups could not be graded: `{_GRADER}` ended with status {process.returncode}; "
            "install the extra 'grader', as `make install` does"
        )
    return [decode(GradedGroup, fields) for fields in unpack_all(BytesIO(process.stdout))]


def _samples_folder(job: str) -> Path:
    data_dir = Path(read_variable(os.environ, "WEIR_DATA_DIR") or home_dir(os.environ) / "data")
    folder = data_dir / "jobs" / job / "samples"
    if not folder.is_dir():
        raise CannotReplay(
            f"there is no {folder}; run this on the machine with the stack's data folder, and set "
            "WEIR_DATA_DIR to it if `weir up` was not started here"
        )
    return folder


def _load_job_recipe(folder: Path) -> Recipe:
    try:
        return Recipe.model_validate_json((folder / RECIPE).read_bytes())
    except (OSError, ValidationError) as error:
        raise CannotReplay(f"{folder / RECIPE}: {error}; give a recipe by --recipe") from error


def _row_values(row: Row) -> dict[str, Any]:
    """Return a response's scores, their reasons, its reward and advantages; None for unknown."""
    grade = Grade.model_validate_json(row["grade"])
    values: dict[str, Any] = {}
    for name in _SCORES:
        score: Score | None = getattr(grade, name)
        values[name] = getattr(score, "value", None)
        values[f"{name}_reason"] = score.reason if score else None
    return values | {name: row[name] for name in _COLUMNS if name not in _SCORES}


def _summarize(
    responses: Sequence[Response], groups: Sequence[list[Row]], recipe: Recipe
) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "step": groups[0][0]["step"],
        "groups": len(groups),
        "failed": sum(rows[0]["failure"] is not None for rows in groups),
        "has_advantages": Scoring.of(recipe).gives_advantages,
        "changed": {name: sum(r.changed(name) for r in responses) for name in _COLUMNS},
        "mean_absolute_difference": {n: _mean_difference(responses, n) for n in _COLUMNS},
    }


def _mean_difference(responses: Sequence[Response], name: str) -> float | None:
    """Average over the responses that have a value before and after."""
    differences = [
        abs(response.after[name] - response.before[name])
        for response in responses
        if response.before[name] is not None and response.after[name] is not None
    ]
    return sum(differences) / len(differences) if differences else None


def _show(
    summary: Mapping[str, Any],
    responses: Sequence[Response],
    recipe: Recipe,
    *,
    is_job_recipe: bool,
) -> None:
    console = Console(width=_TABLE_COLUMNS, highlight=False, markup=False)
    recipe_name = "the job's recipe" if is_job_recipe else f"the recipe {recipe.name}"
    failed = f" ({summary['failed']} failed and have none)" if summary["failed"] else ""
    console.print(
        f"step {summary['step']} by {recipe_name}: {summary['groups']} groups{failed}, "
        f"{len(responses)} responses"
    )
    if not summary["has_advantages"]:
        console.print(
            "the recipe's advantages come from a critic; without its model they are not computed"
        )
    if recipe.environment is not None:
        console.print("rewards of environments are the stored ones: no episode is played again")
    changed = [response for response in responses if response.has_changed]
    if not changed:
        console.print("nothing changes: grades, rewards and advantages are the same, bit for bit")
        return
    table = Table("value", "changed", "mean |difference|", box=None, pad_edge=False)
    for name, label in _COLUMNS.items():
        difference = summary["mean_absolute_difference"][name]
        table.add_row(label, str(summary["changed"][name]), _format_number(difference))
    console.print(table)
    table = Table("response", "fate", *_COLUMNS.values(), box=None, pad_edge=False)
    for response in changed:
        cells = [_format_cell(response, name) for name in _COLUMNS]
        table.add_row(f"{response.key}/{response.index}", response.fate, *cells)
    console.print(table)


def _format_cell(response: Response, name: str) -> str:
    new = _format_value(response.after, name)
    if not response.changed(name):
        return new
    return f"{_format_value(response.before, name)} → {new}"


def _format_value(values: Mapping[str, Any], name: str) -> str:
    value = values[name]
    reason = values.get(f"{name}_reason")
    if not reason:
        return _format_number(value)
    return reason if value is None else f"{_format_number(value)} {reason}"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
