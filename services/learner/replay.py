"""``weir replay JOB --step N``: grade the groups of a step again, and show what changes.

It reads the job's sample store and needs neither the stack nor the models. What became of a group
stays: which groups another recipe would have used is not asked.

Exit status: 0 it was shown; 1 the job's own recipe gives something else than it gave; 2 the input
was wrong, or the groups could not be graded.
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
from protocol.messages import ActiveJob, Grade, GradedGroup, Score
from protocol.recipe import Purpose, Recipe, RecipeError, load_recipe
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
from services.learner.durable.sample_rows import Row, graded_of, read_groups, rows_of
from services.learner.formulas import check_formulas
from services.learner.training.scoring import ScoredGroup, Scoring

SHOWN, DIFFERENT, BAD_INPUT = 0, 1, 2
_GRADER = "services.grader.offline.replay"
_NUMBERS = {  # by their names in the table
    "outcome": "outcome",
    "process": "process",
    "reward": "reward",
    "outcome_advantage": "A_out",
    "process_advantage": "A_proc",
    "advantage": "advantage",
}
_WIDE = 10_000  # columns: a narrow terminal wraps lines, and nothing is cut


class CannotReplay(Exception):
    """The step cannot be graded again; the text says why, and what helps."""


@dataclass(frozen=True)
class Response:
    """One response of the step, as the job valued it and as the recipe values it now."""

    key: str
    index: int
    fate: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def changed(self, name: str) -> bool:
        """Whether a value is another now; with an outcome or a process goes its reason."""
        names = (name, f"{name}_reason")
        return any(self.before.get(n) != self.after.get(n) for n in names)

    @property
    def has_changed(self) -> bool:
        return self.before != self.after


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        folder = _samples_folder(given.job)
        import_extensions("WEIR_EXTENSIONS", split_list(os.environ.get("WEIR_EXTENSIONS", "")))
        recipe = load_recipe(Path(given.recipe)) if given.recipe else _own_recipe(folder)
        check_formulas(recipe)
        before = read_step(folder, given.step)
        responses = replay(before, recipe)
    except (RecipeError, CannotReplay, UnknownName, DeploymentError, FrameError, OSError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    found = _summary(responses, before, recipe)
    if given.json:
        print(json.dumps({**found, "responses": [asdict(r) for r in responses]}, indent=1))
    else:
        _show(found, responses, recipe, is_own=not given.recipe)
    is_different = any(response.has_changed for response in responses)
    return DIFFERENT if is_different and not given.recipe else SHOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir replay",
        description="Grade the groups of a step again, and show what changes. It takes the stack's "
        "data folder: WEIR_DATA_DIR, else that of `weir up`. A judge is asked where WEIR_JUDGE_URL "
        "says.",
    )
    parser.add_argument("job", metavar="JOB")
    parser.add_argument(
        "--step", type=int, required=True, metavar="N", help="as `weir samples` counts them, from 0"
    )
    parser.add_argument("--recipe", metavar="FILE", help="to value them by; else the job's own")
    parser.add_argument("--json", action="store_true", help="every response, machine-readable")
    return parser


def read_step(folder: Path, step: int) -> list[list[Row]]:
    """The rows of each group of a step, as the last attempt that made it left them.

    Raises:
        CannotReplay: if there is none.
        OSError: naming the file that is damaged.
    """
    files = step_files(folder)
    found = sorted((file for file in files if file.step == step), key=lambda file: file.purpose)
    if not found:
        kept = f"from {files[0].step} to {files[-1].step}" if files else "of no step"
        raise CannotReplay(f"{folder} has no samples of step {step}, but {kept}")
    groups = [rows for file in found for rows in read_groups(folder / file.name)]
    if any(row["failure"] is None and row["grade"] is None for rows in groups for row in rows):
        raise CannotReplay(f"{folder}: a client's program has valued step {step}; no grade is here")
    return groups


def replay(before: Sequence[list[Row]], recipe: Recipe) -> list[Response]:
    """Every response of groups that did not fail, valued again by a recipe.

    Raises:
        CannotReplay: if they cannot be graded.
    """
    whole = [rows for rows in before if rows[0]["failure"] is None]
    scoring = Scoring.of(recipe)
    after = [
        _valued(old, graded, scoring)
        for old, graded in zip(whole, graded_again(whole, recipe), strict=True)
    ]
    return [
        Response(old["key"], old["index"], old["fate"], _values(old), _values(new))
        for old_rows, new_rows in zip(whole, after, strict=True)
        for old, new in zip(old_rows, new_rows, strict=True)
    ]


def _valued(old: list[Row], graded: GradedGroup, scoring: Scoring) -> list[Row]:
    if graded.purpose is Purpose.EVAL:
        scoring = scoring.comparison_only
    kept = {name: old[0][name] for name in ("attempt", "step", "created_at")}
    (new,) = rows_of([ScoredGroup(graded, scoring, old[0]["fate"])], {}, **kept)
    return new


def graded_again(groups: Sequence[list[Row]], recipe: Recipe) -> list[GradedGroup]:
    """The groups with new grades. Services do not import each other: the grader is a process."""
    job = ActiveJob(job_id="replay", attempt=1, recipe=recipe)
    asked = [job, *(group for rows in groups if (group := graded_of(rows).group))]
    frames = b"".join(pack(encode(message)) for message in asked)
    command = [sys.executable, "-m", _GRADER]
    done = subprocess.run(command, input=frames, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise CannotReplay(
            f"the groups could not be graded: `{_GRADER}` ended with status {done.returncode}; it "
            "takes an installation with the extra 'grader', as `make install` makes it"
        )
    return [decode(GradedGroup, fields) for fields in unpack_all(BytesIO(done.stdout))]


def _samples_folder(job: str) -> Path:
    data = Path(read_variable(os.environ, "WEIR_DATA_DIR") or home_dir(os.environ) / "data")
    folder = data / "jobs" / job / "samples"
    if not folder.is_dir():
        raise CannotReplay(
            f"there is no {folder}; run this where the stack's data folder is, and name it in "
            "WEIR_DATA_DIR if `weir up` was not started here"
        )
    return folder


def _own_recipe(folder: Path) -> Recipe:
    try:
        return Recipe.model_validate_json((folder / RECIPE).read_bytes())
    except (OSError, ValidationError) as error:
        raise CannotReplay(f"{folder / RECIPE}: {error}; give a recipe by --recipe") from error


def _values(row: Row) -> dict[str, Any]:
    """A response's grade and what was made of it; None for what is unknown."""
    grade = Grade.model_validate_json(row["grade"])
    made = ("reward", "outcome_advantage", "process_advantage", "advantage")
    scores = _score("outcome", grade.outcome) | _score("process", grade.process)
    return scores | {name: row[name] for name in made}


def _score(name: str, score: Score | None) -> dict[str, Any]:
    value = getattr(score, "value", None)
    return {name: value, f"{name}_reason": score.reason if score else None}


def _summary(
    responses: Sequence[Response], before: Sequence[list[Row]], recipe: Recipe
) -> dict[str, Any]:
    pairs = {name: [(r.before[name], r.after[name]) for r in responses] for name in _NUMBERS}
    return {
        "recipe": recipe.name,
        "step": before[0][0]["step"],
        "groups": len(before),
        "failed": sum(rows[0]["failure"] is not None for rows in before),
        "has_advantages": Scoring.of(recipe).gives_advantages,
        "changed": {name: sum(r.changed(name) for r in responses) for name in _NUMBERS},
        "mean_absolute_difference": {name: _mean_difference(pairs[name]) for name in _NUMBERS},
    }


def _mean_difference(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Over the responses that have a value before and after."""
    both = [abs(new - old) for old, new in pairs if old is not None and new is not None]
    return sum(both) / len(both) if both else None


def _show(
    found: Mapping[str, Any], responses: Sequence[Response], recipe: Recipe, *, is_own: bool
) -> None:
    console = Console(width=_WIDE, highlight=False, markup=False)
    whose = "its own recipe" if is_own else f"the recipe {recipe.name}"
    failed = f" ({found['failed']} failed and have none)" if found["failed"] else ""
    console.print(
        f"step {found['step']} by {whose}: {found['groups']} groups{failed}, "
        f"{len(responses)} responses"
    )
    if not found["has_advantages"]:
        console.print(
            "the recipe leaves advantages to a critic: they take the models, and are not computed"
        )
    if recipe.environment is not None:
        console.print(
            "rewards of environments are those that were kept: no episode is played again"
        )
    changed = [response for response in responses if response.has_changed]
    if not changed:
        console.print("nothing changes: grades, rewards and advantages are the same, bit for bit")
        return
    table = Table("value", "changed", "mean |difference|", box=None, pad_edge=False)
    for name, label in _NUMBERS.items():
        difference = found["mean_absolute_difference"][name]
        table.add_row(label, str(found["changed"][name]), _text(difference))
    console.print(table)
    rows = Table("response", "fate", *_NUMBERS.values(), box=None, pad_edge=False)
    for response in changed:
        cells = [_cell(response, name) for name in _NUMBERS]
        rows.add_row(f"{response.key}/{response.index}", response.fate, *cells)
    console.print(rows)


def _cell(response: Response, name: str) -> str:
    old, new = (_text_of(values, name) for values in (response.before, response.after))
    return f"{old} → {new}" if response.changed(name) else new


def _text_of(values: Mapping[str, Any], name: str) -> str:
    value, reason = values[name], values.get(f"{name}_reason")
    return " ".join(filter(None, (_text(value) if value is not None or not reason else "", reason)))


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
