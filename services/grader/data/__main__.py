"""``weir data``: check a task file, or rewrite its problems so that every answer is an integer.

Exit status: 0 the file has no problem, or OUT was written; 2 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path

from services.chassis.deployment import DeploymentError
from services.grader.data.check import check
from services.grader.data.integers import How, Outcome, rewrite_all, summary
from services.grader.data.lines import Line, read_lines
from services.grader.data.rewriter import Rewriter, RewriterError
from services.grader.pool import Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
from services.grader.verifiers.math_answer import WARM_UP

DONE, NOT_DONE = 0, 2


class RefusedError(ValueError):
    """The command cannot do its work; the text says what to change."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a task may hold any character
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (OSError, DeploymentError, RefusedError, RewriterError) as error:
        print(f"weir data: {error}", file=sys.stderr)
        return NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir data", description="Work on task files.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    text = "report every problem of a task file, with its line"
    verb = verbs.add_parser("check", help=text, description=text)
    verb.add_argument("file", metavar="FILE", type=Path)
    verb.set_defaults(run=_check)
    text = "rewrite problems so that every answer is an integer, each one checked by the grader"
    verb = verbs.add_parser("integers", help=text, description=text)
    verb.add_argument("source", metavar="IN", type=Path)
    verb.add_argument("target", metavar="OUT", type=Path)
    verb.set_defaults(run=_integers)
    return parser


def _check(given: argparse.Namespace) -> int:
    checked = asyncio.run(check(given.file))
    for finding in checked.findings:
        print(finding)
    print(f"{checked.num_tasks} tasks, {checked.num_problems} problems")
    return NOT_DONE if checked.num_problems else DONE


def _integers(given: argparse.Namespace) -> int:
    _examine_target(given.source, given.target)
    lines = _sound_lines(given.source)
    ways: Counter[How] = Counter()
    kept = asyncio.run(_rewritten(lines, ways))
    print(summary(ways), file=sys.stderr)
    if not kept:
        raise RefusedError(f"no task is left, {given.target} was not written")
    _write(given.target, kept)
    return DONE


def _examine_target(source: Path, target: Path) -> None:
    """Refuse now what would fail when the work is done."""
    if target.exists() and target.samefile(source):
        raise RefusedError(f"{target} is the file to read; name another one to write")
    if target.is_dir() or not target.parent.is_dir():
        raise RefusedError(f"{target} cannot be written; name a file in a folder that exists")


def _sound_lines(path: Path) -> list[Line]:
    lines = list(read_lines(path))
    problems = [f"line {line.number}: {text}" for line in lines for text in line.problems]
    if problems:
        remedy = f"correct {path} first; `weir data check` says more"
        raise RefusedError("\n".join([*problems, remedy]))
    return lines


async def _rewritten(lines: Sequence[Line], ways: Counter[How]) -> list[str]:
    """The JSON of every task that has an integer answer now; the others are reported."""
    kept: list[str] = []
    rewriter = Rewriter.from_environment()
    async with Pool(Settings.from_environment().workers, warm_ups=[WARM_UP]) as pool:
        async for outcome in rewrite_all(lines, Tools(pool), rewriter):
            ways[outcome.how] += 1
            if outcome.how is How.LEFT_OUT:
                _report(outcome)
            else:
                kept.append(json.dumps(outcome.fields, ensure_ascii=False))
    return kept


def _report(outcome: Outcome) -> None:
    task_id = outcome.line.task.id if outcome.line.task else None
    print(f"line {outcome.line.number}: {task_id!r}: {outcome.reason}", file=sys.stderr)


def _write(path: Path, lines: Iterable[str]) -> None:
    """All or nothing: a reader sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # JSON writes half a surrogate pair just as Python replaces it.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
