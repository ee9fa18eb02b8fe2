"""``weir data``: import tasks, check them, or rewrite them to have integer answers.

Exit status: 0 the file has no problem, or OUT was written completely; 2 anything else; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from secrets import token_hex

from protocol.profiles import ProfileError, histogram, read_profile
from protocol.recipe import Recipe, load_recipe
from protocol.recipe_files import RecipeError
from protocol.tasks import raw_lines, read_tasks

from services.chassis.deployment import DeploymentError, model_sources, parse_count
from services.chassis.faults import WorkerFault
from services.chassis.pool import NoWorkerError
from services.data.check import check, check_lines
from services.data.importing import choose_held_out, import_tasks
from services.data.integers import rewrite_all
from services.data.mapping import RefusedError
from services.data.presets import PRESETS, AnswerPart, Preset
from services.data.rows import read_rows
from services.grader.judge.settings import NAMED_JUDGES, URL, deployed_judges

DONE = 0
NOT_DONE = 2
_FORCE = "replace OUT if it exists"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb, and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A task may have any character.
            stream.reconfigure(errors="backslashreplace")
    options = _build_parser().parse_args(arguments)
    try:
        return options.run(options)
    except (
        OSError,
        DeploymentError,
        NoWorkerError,
        RecipeError,
        RefusedError,
        ProfileError,
    ) as error:
        print(f"weir data: {error}", file=sys.stderr)
        return NOT_DONE


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir data",
        description="Work on task files.",
        epilog="`weir data profile` measures how often a model solves each task of a file.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    text = "report every problem of a task file, with its line"
    verb = verbs.add_parser("check", help=text, description=text)
    verb.add_argument("file", metavar="FILE", type=Path)
    text = "also count the prompts that are too long for its model"
    verb.add_argument("--recipe", metavar="RECIPE", type=Path, help=text)
    verb.set_defaults(run=_check)
    text = "make a task file of a dataset: each problem once, each answer checked"
    _add_import_options(verbs.add_parser("import", help=text, description=text))
    text = "rewrite problems to ask for an integer, with formats that a model finds"
    verb = verbs.add_parser("integers", help=text, description=text)
    verb.add_argument("source", metavar="FILE", type=Path)
    verb.add_argument("target", metavar="OUT", type=Path)
    verb.add_argument(
        "--model", metavar="NAME", default="", help=f"of {NAMED_JUDGES}; default: {URL}'s"
    )
    verb.add_argument(
        "--force",
        action="store_true",
        help=_FORCE,
    )
    verb.set_defaults(run=_integers)
    return parser


def _add_import_options(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("source", metavar="SOURCE", help="a .parquet, .csv or .json(l) file, folder, hub, preset")
    add("target", metavar="OUT", type=Path)
    add("--preset", choices=PRESETS, help="the columns of a known dataset")
    add("--problem", metavar="COL", help="default: problem")
    add("--answer", metavar="COL", help="default: answer")
    add("--answer-from", choices=[*AnswerPart], type=AnswerPart, help="the part of its column")
    add("--solution", metavar="COL")
    add("--id", metavar="COL", help="default: derived from the problem")
    add("--keep", metavar="COL", action="append", default=[], help="as metadata")
    text = "only rows with one of these values"
    add("--where", metavar="COL=A,B", action="append", default=[], help=text)
    add("--config", metavar="NAME", action="append", help="a part of the dataset")
    add("--split", metavar="NAME", help="default: the preset's, or train")
    add("--limit", metavar="N", type=parse_count, help="stop after this many problems")
    text = "move this many tasks, or a share below 1, to a second file, OUT with -held-out"
    add("--held-out", metavar="N", type=float, help=text)
    add("--seed", metavar="N", type=int, default=0, help="of the held-out tasks; default: 0")
    add(
        "--force",
        action="store_true",
        help=_FORCE,
    )
    verb.set_defaults(run=_import)


def _check(options: argparse.Namespace) -> int:
    num_tasks, findings = asyncio.run(check(options.file))
    for finding in findings:
        print(finding)
    problems = [finding for finding in findings if not finding.is_warning]
    num_problems = len(problems)
    if options.recipe and not num_problems:
        print(_check_prompts(options.file, load_recipe(options.recipe)))
    profiles = read_profile(options.file)
    if profiles:
        print("\n".join(histogram(profiles)))
    print(f"{num_tasks} tasks, {num_problems} problems")
    return NOT_DONE if num_problems else DONE


def _check_prompts(path: Path, recipe: Recipe) -> str:
    """Return the number of prompts that are too long for a recipe's model."""
    model = recipe.model
    roots, _ = model_sources(os.environ)
    folders = [root / model.path for root in roots]
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        return f"the prompts were not measured: {model.path} is not here; see WEIR_MODEL_ROOTS"
    try:
        # The grader's image has no tokenizers.
        from services.chassis.renderer import check_prompts
    except ModuleNotFoundError as error:
        return f"the prompts were not measured: {error.name} is not installed; use weir plan"
    max_tokens = recipe.rollout.sampling.max_tokens
    report = asyncio.run(check_prompts(read_tasks(path), folder, model, max_tokens))
    return report or "all prompts fit"


def _import(options: argparse.Namespace) -> int:
    source = options.source
    path = Path(source)
    preset = PRESETS.get(options.preset or source, Preset())
    preset = _apply_options(preset, options)
    if path.is_file() and (options.config or options.split not in (None, "train")):
        raise RefusedError(f"{source} is one file: it has no --config and no --split")
    if source in PRESETS and not path.exists():
        source = preset.hub
    _check_preset(source)
    target = options.target
    target_file = _resolve_target(target, path, may_replace=options.force)
    held_out_target = target.with_stem(f"{target.stem}-held-out")
    size = options.held_out
    held_out_file = (
        None
        if size is None
        else _resolve_target(
            held_out_target,
            path,
            may_replace=options.force,
        )
    )
    rows = read_rows(source, preset.configs, options.split or preset.split)
    imported = asyncio.run(import_tasks(rows, preset, options.limit))
    for line in imported.report():
        print(line, file=sys.stderr)
    drafts = imported.drafts
    if not drafts:
        raise RefusedError(f"no task is left of {imported.num_rows} rows; nothing was written")
    held_out: set[str] = set()
    if held_out_file is not None:
        held_out = choose_held_out(drafts, size or 0, options.seed)
        _write(held_out_file, [draft.text for draft in drafts if draft.key in held_out])
    tasks = [draft.text for draft in drafts if draft.key not in held_out]
    _write(target_file, tasks)
    print(f"{imported.num_rows} rows: {len(tasks)} tasks in {target}")
    if held_out:
        print(f"held out: {len(held_out)} tasks in {held_out_target}")
    return DONE


def _check_preset(source: str) -> None:
    """Refuse a misspelled preset, before the hub is asked for it."""
    near = difflib.get_close_matches(source, PRESETS, n=1, cutoff=0.8)
    if near and not Path(source).exists():
        raise RefusedError(f"there is no {source!r} here; did you mean the preset {near[0]!r}?")


def _integers(options: argparse.Namespace) -> int:
    source = options.source
    target = _resolve_target(options.target, source, may_replace=options.force)
    replies = _resolve_target(target.with_name(f"{target.name}.replies"), source)
    server = deployed_judges().get(options.model)
    if server is None:
        problem = f"{URL} is not set"
        if options.model:
            problem = f"{NAMED_JUDGES} has no {options.model!r}; add it"
        raise RefusedError(f"{problem}: give the URL of an OpenAI-compatible server, and its model")
    with source.open("rb") as file:
        lines = list(check_lines(raw_lines(file)))
    if not lines or any(line.problems for line in lines):
        raise RefusedError(f"{source} has problems; see `weir data check {source}`")
    try:
        outcomes = asyncio.run(rewrite_all(lines, server, replies))
    except WorkerFault as error:
        raise RefusedError(f"{error}; then run this again: {replies} has the replies") from error
    texts = [json.dumps(fields, ensure_ascii=False) for fields, _ in outcomes]
    _write(target, texts)
    replies.unlink(missing_ok=True)
    for reason, number in Counter(reason for _, reason in outcomes).most_common():
        print(f"{number} {reason}")
    return DONE


def _apply_options(preset: Preset, options: argparse.Namespace) -> Preset:
    """Return a preset changed by the options."""
    answer = tuple((column, options.answer_from or part) for column, part in preset.answer)
    if options.answer:
        answer = ((options.answer, options.answer_from or AnswerPart.COLUMN),)
    only = dict(preset.only)
    required = {options.solution, options.id, *options.keep} - {None}
    for condition in options.where:
        column, separator, values = condition.partition("=")
        if not separator:
            raise RefusedError(f"--where {condition}: write it as COL=A,B")
        only[column] = frozenset(values.split(","))
        if column not in preset.only:
            required.add(column)
    columns: dict[str, tuple[str, ...]] = {}
    for name in ("problem", "solution", "id"):
        column = getattr(options, name)
        if column:
            columns[name] = (column,)
    return replace(
        preset,
        answer=answer,
        keep=(*preset.keep, *options.keep),
        configs=tuple(options.config or preset.configs),
        only=only,
        required=frozenset(required),
        **columns,
    )


def _resolve_target(path: Path, source: Path, *, may_replace: bool = True) -> Path:
    """Return the regular file of ``path``, with symlinks resolved; it need not exist.

    Raises:
        RefusedError: if it is ``source``, no regular file, in no writable folder, or may not be
            replaced.
    """
    if source.exists() and path.exists() and path.samefile(source):
        raise RefusedError(f"{path} is the file to read; name another one to write")
    target = Path(os.path.realpath(path))
    is_special = path.exists() and not path.is_file()
    if is_special or target.is_symlink():
        raise RefusedError(f"{path} is no regular file; name another one to write")
    if target.exists() and not may_replace:
        raise RefusedError(f"{path} exists; name another file, or replace it with --force")
    if not os.access(target.parent, os.W_OK):
        raise RefusedError(f"{path} cannot be written; name a file in a writable folder")
    return target


def _write(target: Path, lines: Iterable[str]) -> None:
    """Replace a file completely, or leave it unchanged if an error occurs."""
    unfinished = target.with_name(f".weir-{token_hex(4)}")
    try:
        # JSON escapes half a surrogate pair just as Python's backslashreplace does.
        with unfinished.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
