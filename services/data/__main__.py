"""``weir data``: bring tasks in, check them, or rewrite them to have integers for answers.

Exit status: 0 the file has no problem, or OUT was written in full; 2 anything else; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from secrets import token_hex

from protocol.recipe import Recipe, RecipeError, load_recipe
from protocol.tasks import raw_lines, read_tasks

from services.chassis.deployment import DeploymentError, model_sources, parse_count
from services.chassis.faults import WorkerFault
from services.chassis.pool import NoWorkerError
from services.data.check import check, examined
from services.data.importing import held_out, import_tasks
from services.data.integers import rewrite_all
from services.data.mapping import RefusedError
from services.data.presets import PRESETS, Preset, Taken
from services.data.rows import rows_of
from services.grader.judge.settings import NAMED_JUDGES, URL, deployed_judges

DONE, NOT_DONE = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a task may hold any character
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (OSError, DeploymentError, NoWorkerError, RecipeError, RefusedError) as error:
        print(f"weir data: {error}", file=sys.stderr)
        return NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir data", description="Work on task files.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    text = "report every problem of a task file, with its line"
    verb = verbs.add_parser("check", help=text, description=text)
    verb.add_argument("file", metavar="FILE", type=Path)
    text = "also count the prompts that do not fit, by its model and its lengths"
    verb.add_argument("--recipe", metavar="RECIPE", type=Path, help=text)
    verb.set_defaults(run=_check)
    text = "make a task file of a dataset: each problem once, each answer checked"
    _add_import(verbs.add_parser("import", help=text, description=text))
    text = "ask for an integer where an answer is an expression, in a format that a model finds"
    verb = verbs.add_parser("integers", help=text, description=text)
    verb.add_argument("source", metavar="FILE", type=Path)
    verb.add_argument("target", metavar="OUT", type=Path)
    verb.add_argument(
        "--model", metavar="NAME", default="", help=f"of {NAMED_JUDGES}; default: {URL}'s"
    )
    verb.set_defaults(run=_integers)
    return parser


def _add_import(verb: argparse.ArgumentParser) -> None:
    source = "a .parquet, .csv, .json or .jsonl file, a folder, a hub name, or a preset"
    verb.add_argument("source", metavar="SOURCE", help=source)
    verb.add_argument("target", metavar="OUT", type=Path)
    verb.add_argument("--preset", choices=PRESETS, help="the columns of a dataset that is known")
    verb.add_argument("--problem", metavar="COL", help="default: problem")
    verb.add_argument("--answer", metavar="COL", help="default: answer")
    verb.add_argument("--answer-from", choices=[*Taken], type=Taken, help="of its column")
    verb.add_argument("--solution", metavar="COL")
    verb.add_argument("--id", metavar="COL", help="default: made from the problem")
    verb.add_argument("--keep", metavar="COL", action="append", default=[], help="as metadata")
    text = "only rows with one of these values"
    verb.add_argument("--where", metavar="COL=A,B", action="append", default=[], help=text)
    verb.add_argument("--config", metavar="NAME", action="append", help="a part of the dataset")
    verb.add_argument("--split", metavar="NAME", help="default: the preset's, or train")
    verb.add_argument("--limit", metavar="N", type=parse_count, help="stop after so many problems")
    text = "put so many, or a share below 1, into a second file, OUT with -held-out in its name"
    verb.add_argument("--held-out", metavar="N", type=float, help=text)
    verb.add_argument("--seed", metavar="N", type=int, default=0, help="which are held out: 0")
    verb.set_defaults(run=_import)


def _check(given: argparse.Namespace) -> int:
    num_tasks, findings = asyncio.run(check(given.file))
    for finding in findings:
        print(finding)
    num_problems = sum(not finding.is_warning for finding in findings)
    if given.recipe and not num_problems:
        print(_prompts(given.file, load_recipe(given.recipe)))
    print(f"{num_tasks} tasks, {num_problems} problems")
    return NOT_DONE if num_problems else DONE


def _prompts(path: Path, recipe: Recipe) -> str:
    """What is to be said of the prompts that a recipe's model makes of a task file."""
    model = recipe.model
    roots, _ = model_sources(os.environ)
    folder = next((root / model.path for root in roots if (root / model.path).is_dir()), None)
    if folder is None:
        return f"the prompts were not measured: {model.path} is not here; see WEIR_MODEL_ROOTS"
    try:
        from services.chassis.renderer import check_prompts  # the grader's image has no tokenizers
    except ModuleNotFoundError as error:
        return f"the prompts were not measured: {error.name} is not installed; weir plan does it"
    max_tokens = recipe.rollout.sampling.max_tokens
    found = asyncio.run(check_prompts(read_tasks(path), folder, model, max_tokens))
    return found or "all prompts fit"


def _import(given: argparse.Namespace) -> int:
    named = given.preset or (given.source if given.source in PRESETS else None)
    preset = _preset(PRESETS[named] if named else Preset(), given)
    is_here = Path(given.source).exists()
    if Path(given.source).is_file() and (given.config or given.split not in (None, "train")):
        raise RefusedError(f"{given.source} is one file: it has no --config and no --split")
    source = preset.hub if given.source in PRESETS and not is_here else given.source
    paths = [given.target]
    if given.held_out is not None:
        paths.append(given.target.with_stem(f"{given.target.stem}-held-out"))
    targets = [_file_to_write(path, Path(source) if is_here else None) for path in paths]
    rows = rows_of(source, preset.configs, given.split or preset.split)
    imported = asyncio.run(import_tasks(rows, preset, given.limit))
    for line in imported.report():
        print(line, file=sys.stderr)
    drafts = imported.drafts
    if not drafts:
        raise RefusedError(f"no task is left of {imported.num_rows} rows; nothing was written")
    out = set() if given.held_out is None else held_out(drafts, given.held_out, given.seed)
    kept = [draft for draft in drafts if draft.key not in out]
    if out:
        _write(targets[1], [draft.text for draft in drafts if draft.key in out])
    _write(targets[0], [draft.text for draft in kept])
    print(f"{imported.num_rows} rows: {len(kept)} tasks in {paths[0]}")
    if out:
        print(f"held out: {len(out)} tasks in {paths[1]}")
    return DONE


def _integers(given: argparse.Namespace) -> int:
    target = _file_to_write(given.target, given.source)
    replies = _file_to_write(target.with_name(f"{target.name}.replies"), given.source)
    if (server := deployed_judges().get(given.model)) is None:
        named = (
            f"{NAMED_JUDGES} has no {given.model!r}; add it" if given.model else f"{URL} is not set"
        )
        raise RefusedError(f"{named}: give the base of an OpenAI-compatible server, and its model")
    with given.source.open("rb") as file:
        lines = list(examined(raw_lines(file)))
    if not lines or any(line.problems for line in lines):
        raise RefusedError(f"{given.source} has problems; see `weir data check {given.source}`")
    try:
        outcomes = asyncio.run(rewrite_all(lines, server, replies))
    except WorkerFault as error:
        raise RefusedError(f"{error}; then run this again, for what {replies} lacks") from error
    _write(target, [json.dumps(fields, ensure_ascii=False) for fields, _ in outcomes])
    replies.unlink(missing_ok=True)
    for how, number in Counter(how for _, how in outcomes).most_common():
        print(f"{number} {how}")
    return DONE


def _preset(preset: Preset, given: argparse.Namespace) -> Preset:
    """A preset with what the options say instead of it."""
    answers = tuple((column, given.answer_from or taken) for column, taken in preset.answer)
    if given.answer:
        answers = ((given.answer, given.answer_from or Taken.COLUMN),)
    only = dict(preset.only)
    for condition in given.where:
        column, equals, values = condition.partition("=")
        if not equals:
            raise RefusedError(f"--where {condition}: say it as COL=A,B")
        only[column] = frozenset(values.split(","))
    asked = {given.solution, given.id, *given.keep, *(only.keys() - preset.only.keys())} - {None}
    return replace(
        preset,
        problem=(given.problem,) if given.problem else preset.problem,
        answer=answers,
        solution=(given.solution,) if given.solution else preset.solution,
        id=(given.id,) if given.id else preset.id,
        keep=(*preset.keep, *given.keep),
        configs=tuple(given.config or preset.configs),
        only=only,
        required=frozenset(asked),
    )


def _file_to_write(path: Path, source: Path | None) -> Path:
    """The regular file that ``path`` means, followed through symlinks; it need not exist yet.

    Raises:
        RefusedError: for ``source`` itself, a device, a pipe, a folder, or without a folder.
    """
    if source and path.exists() and path.samefile(source):
        raise RefusedError(f"{path} is the file to read; name another one to write")
    target = Path(os.path.realpath(path))
    if (path.exists() and not path.is_file()) or target.is_symlink():
        raise RefusedError(f"{path} is no regular file; name a file, which is written whole or not")
    if not os.access(target.parent, os.W_OK):
        raise RefusedError(f"{path} cannot be written; name a file in a folder you may write to")
    return target


def _write(target: Path, lines: Iterable[str]) -> None:
    """Replace a file whole, or leave it as it is if an error comes between."""
    unfinished = target.with_name(f".weir-{token_hex(4)}")
    try:
        # JSON writes half a surrogate pair just as Python replaces it.
        with unfinished.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
