"""``weir data``: bring tasks in, check them, or rewrite them so that answers are integers.

Exit status: 0 the file has no problem, or OUT was written in full; 2 anything else; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from protocol.tasks import Line

from services.chassis.deployment import DeploymentError, count
from services.data.check import check
from services.data.importing import held_out, import_tasks
from services.data.integers import How, Outcome, rewrite_all, summary
from services.data.lines import read_lines
from services.data.presets import PRESETS, Preset, Taken
from services.data.rows import rows_of
from services.data.target import RefusedError, file_to_write, replacing
from services.grader.pool import NoWorkerError, Pool
from services.grader.tools import Settings, Tools
from services.grader.verifiers.math_answer import WARM_UP

DONE, NOT_DONE = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a task may hold any character
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (OSError, DeploymentError, NoWorkerError, RefusedError) as error:
        print(f"weir data: {error}", file=sys.stderr)
        return NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir data", description="Work on task files.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    text = "report every problem of a task file, with its line"
    verb = verbs.add_parser("check", help=text, description=text)
    verb.add_argument("file", metavar="FILE", type=Path)
    verb.set_defaults(run=_check)
    text = "make a task file of a dataset: each problem once, each answer checked"
    _add_import(verbs.add_parser("import", help=text, description=text))
    text = "rewrite problems so that every answer is an integer, each one checked by the grader"
    verb = verbs.add_parser("integers", help=text, description=text)
    verb.add_argument("source", metavar="IN", type=Path)
    verb.add_argument("target", metavar="OUT", type=Path)
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
    verb.add_argument("--limit", metavar="N", type=count, help="stop after so many problems")
    text = "put so many, or a share below 1, into a second file, OUT with -held-out in its name"
    verb.add_argument("--held-out", metavar="N", type=float, help=text)
    verb.add_argument("--seed", metavar="N", type=int, default=0, help="which are held out: 0")
    verb.set_defaults(run=_import)


def _check(given: argparse.Namespace) -> int:
    num_tasks, findings = asyncio.run(check(given.file))
    for finding in findings:
        print(finding)
    num_problems = sum(not finding.is_warning for finding in findings)
    print(f"{num_tasks} tasks, {num_problems} problems")
    return NOT_DONE if num_problems else DONE


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
    targets = [file_to_write(path, Path(source) if is_here else None) for path in paths]
    with ExitStack() as stack:
        files = [stack.enter_context(replacing(target)) for target in targets]
        rows = rows_of(source, preset.configs, given.split or preset.split)
        imported = asyncio.run(import_tasks(rows, preset, given.limit))
        for line in imported.report():
            print(line, file=sys.stderr)
        if not imported.drafts:
            raise RefusedError(f"no task is left of {imported.num_rows} rows; nothing was written")
        size, drafts = given.held_out, imported.drafts
        out = set() if size is None else held_out(drafts, size, given.seed)
        for draft in drafts:
            files[draft.key in out].write(f"{draft.text}\n")
    print(f"{imported.num_rows} rows: {len(drafts) - len(out)} tasks in {paths[0]}")
    if out:
        print(f"held out: {len(out)} tasks in {paths[1]}")
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


def _integers(given: argparse.Namespace) -> int:
    ways: Counter[How] = Counter()
    with replacing(file_to_write(given.target, given.source)) as file:
        asyncio.run(_rewrite(_sound_lines(given.source), file, ways))
        if ways.total() == ways[How.LEFT_OUT]:
            raise RefusedError(f"no task is left, {given.target} was not written")
    return DONE


def _sound_lines(path: Path) -> list[Line]:
    lines = list(read_lines(path))
    problems = [f"line {line.number}: {text}" for line in lines for text in line.problems]
    if problems:
        remedy = f"correct {path} first; `weir data check` says more"
        raise RefusedError("\n".join([*problems, remedy]))
    return lines


async def _rewrite(lines: Sequence[Line], file: TextIO, ways: Counter[How]) -> None:
    """Write every task that has an integer answer now, and report and count the way of each."""
    async with Pool(Settings.from_environment().workers, warm_ups=[WARM_UP]) as pool:
        async for outcome in rewrite_all(lines, Tools(pool)):
            ways[outcome.how] += 1
            if outcome.how is How.LEFT_OUT:
                _report(outcome)
            else:
                file.write(f"{json.dumps(outcome.fields, ensure_ascii=False)}\n")
    print(summary(ways), file=sys.stderr)


def _report(outcome: Outcome) -> None:
    task_id = outcome.line.task.id if outcome.line.task else None
    print(f"line {outcome.line.number}: {task_id!r}: {outcome.reason}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
