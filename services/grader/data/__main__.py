"""``weir data``: check a task file, or rewrite its problems so that every answer is an integer.

Exit status: 0 the file has no problem, or OUT was written in full; 2 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from protocol.tasks import Line

from services.chassis.deployment import DeploymentError
from services.grader.data.check import check
from services.grader.data.integers import How, Outcome, rewrite_all, summary
from services.grader.data.lines import read_lines
from services.grader.data.rewriter import Rewriter, RewriterError
from services.grader.data.target import RefusedError, file_to_write, replacing
from services.grader.pool import Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
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
    rewriter = Rewriter.from_environment()
    ways: Counter[How] = Counter()
    with replacing(file_to_write(given.target, given.source)) as file:
        stopped = asyncio.run(_rewrite(_sound_lines(given.source), rewriter, file, ways))
        num_written = ways.total() - ways[How.LEFT_OUT]
        if not num_written:
            raise stopped or RefusedError(f"no task is left, {given.target} was not written")
    if stopped:
        finished = f"{given.target} holds the tasks finished before: {num_written}"
        raise RewriterError(f"{stopped}; {finished}")
    return DONE


def _sound_lines(path: Path) -> list[Line]:
    lines = list(read_lines(path))
    problems = [f"line {line.number}: {text}" for line in lines for text in line.problems]
    if problems:
        remedy = f"correct {path} first; `weir data check` says more"
        raise RefusedError("\n".join([*problems, remedy]))
    return lines


async def _rewrite(
    lines: Sequence[Line], rewriter: Rewriter | None, file: TextIO, ways: Counter[How]
) -> RewriterError | None:
    """Write every task that has an integer answer now, and report and count the way of each.

    Returns what stopped the model in the middle of the work, if anything did.
    """
    stopped = None
    async with Pool(Settings.from_environment().workers, warm_ups=[WARM_UP]) as pool:
        try:
            async for outcome in rewrite_all(lines, Tools(pool), rewriter):
                ways[outcome.how] += 1
                if outcome.how is How.LEFT_OUT:
                    _report(outcome)
                else:
                    file.write(f"{json.dumps(outcome.fields, ensure_ascii=False)}\n")
        except RewriterError as error:
            if rewriter is None or not rewriter.was_reached:
                raise
            stopped = error
    print(summary(ways), file=sys.stderr)
    return stopped


def _report(outcome: Outcome) -> None:
    task_id = outcome.line.task.id if outcome.line.task else None
    print(f"line {outcome.line.number}: {task_id!r}: {outcome.reason}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
