"""``weir grade``: grade the responses of a file, or measure the graders by labelled solutions.

Exit status: 0 every line was read, or the report was made; 2 anything else; 130 Ctrl-C; 141 the
reader of standard output went away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from protocol.tasks import raw_lines

from services.chassis.deployment import DeploymentError
from services.chassis.faults import WorkerFault
from services.grader.judge.judge import Judge
from services.grader.judge.settings import URL, JudgeSettings
from services.grader.offline import calibration
from services.grader.offline.agreement import summary
from services.grader.offline.verdicts import (
    MAX_LINE_BYTES,
    UNREADABLE,
    UnreadableLine,
    verdict_on,
)
from services.grader.pool import Pool
from services.grader.tools import Settings, Tools
from services.grader.verifiers.math_answer import WARM_UP
from services.grader.worker import opened

DONE, NOT_DONE, INTERRUPTED, NOBODY_READS = 0, 2, 130, 141
_EXPLAINED = DeploymentError, WorkerFault, calibration.LabelledError
_LINES_AT_ONCE = 32


class ReaderGone(RuntimeError):
    """Whoever read standard output has closed it: `head` does that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade one file; returns the exit status."""
    given = _parser().parse_args(arguments)
    work = _calibrate if given.calibrate else _grade
    try:
        return work(_opened(given.file))
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        return NOBODY_READS
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except _EXPLAINED as error:
        _complain(str(error))
    return NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir grade",
        description='Grade lines {"response": ..., "answer": ...}, perhaps with a "problem": one '
        "line with the verdict each, in their order, on standard output.",
    )
    parser.add_argument("file", metavar="FILE", help="JSON lines; - is standard input")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="FILE holds solutions that a person has graded; report how far the graders agree",
    )
    return parser


def _opened(name: str) -> BinaryIO:
    """The file; the process closes it by ending, since closing waits for a read under way."""
    return open(sys.stdin.fileno() if name == "-" else name, "rb", closefd=name != "-")


def _complain(text: str) -> None:
    for line in text.splitlines():
        print(f"weir grade: {line}", file=sys.stderr)


def _grade(file: BinaryIO) -> int:
    """Verdicts on some lines at a time; lines are read while nothing is under way."""
    settings, status = Settings.from_environment(), DONE
    with asyncio.Runner() as runner:
        pool = Pool(settings.workers, warm_ups=[WARM_UP])
        runner.run(pool.__aenter__())
        try:
            tools, lines = Tools(pool), enumerate(raw_lines(file, MAX_LINE_BYTES), start=1)
            while some := dict(islice(lines, _LINES_AT_ONCE)):
                graded = runner.run(_verdicts(some.values(), tools, settings.workers))
                for number, verdict in zip(some, graded, strict=True):
                    if isinstance(verdict, UnreadableLine):
                        _complain(f"line {number}: {verdict}")
                        status = NOT_DONE
                    _write(UNREADABLE if isinstance(verdict, UnreadableLine) else verdict)
        finally:
            runner.run(pool.__aexit__(None, None, None))
    return status


async def _verdicts(
    lines: Iterable[bytes], tools: Tools, at_once: int
) -> list[dict[str, Any] | UnreadableLine]:
    places = asyncio.Semaphore(at_once)

    async def graded(line: bytes) -> dict[str, Any] | UnreadableLine:
        async with places:
            try:
                return await verdict_on(line, tools)
            except UnreadableLine as error:
                return error

    return await asyncio.gather(*map(graded, lines))


def _calibrate(file: BinaryIO) -> int:
    return asyncio.run(_compare(calibration.read_labelled(file)))


async def _compare(solutions: Sequence[calibration.Labelled]) -> int:
    """Write what there is to know about each verifier, a line of JSON each."""
    own = JudgeSettings.from_environment()
    judges = {"": Judge(replace(own, patient=False))} if own else {}
    settings = replace(Settings.from_environment(), python=False)  # nothing here runs clients' code
    async with opened(settings, judges) as tools:
        for check, label in calibration.CALIBRATED:
            if check.verifier == "model_judge" and not judges:
                _complain(f"model_judge was not asked: {URL} is not set")
                continue
            cases = await calibration.cases_of(check, label, solutions, tools)
            _write({"verifier": check.verifier, "label": label, **summary(cases)})
    return DONE


def _write(fields: Mapping[str, Any]) -> None:
    try:
        print(json.dumps(fields), flush=True)
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


if __name__ == "__main__":
    sys.exit(main())
