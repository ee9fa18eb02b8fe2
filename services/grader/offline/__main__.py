"""``weir grade``: grade the responses of a file, or compare verifiers with a person's grades.

Exit status: 0 every line was read, or the report was made; 2 anything else; 130 Ctrl-C; 141 the
reader of standard output is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from protocol.messages import Graded, is_right
from protocol.recipe_files import explain
from protocol.tasks import raw_lines
from pydantic import ValidationError

from services.chassis.command import INTERRUPTED, OUTPUT_CLOSED
from services.chassis.deployment import DeploymentError
from services.chassis.faults import WorkerFault
from services.chassis.pool import Pool
from services.grader.judge.judge import Judge
from services.grader.judge.settings import URL, deployed_judges
from services.grader.offline.calibration import CALIBRATED, Labelled, score_cases, summarize
from services.grader.tools import Settings, Tools
from services.grader.verifiers.math_answer import WARM_UP, decide_response
from services.grader.worker import open_tools

MAX_LINE_BYTES = 64 << 20
DONE = 0
NOT_DONE = 2
_UNREADABLE = {"verdict": None, "reason": "unreadable_line", "path": None, "ms": 0.0}
_BATCH_LINES = 32


class UnreadableLine(ValueError):
    """A line that cannot be used; the text says why."""


class ReaderGone(RuntimeError):
    """The reader of standard output, for example `head`, has closed it."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _make_parser().parse_args(arguments)
    try:
        file = _open_file(options.file)
        return asyncio.run(_calibrate(read_labelled(file))) if options.calibrate else _grade(file)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        return OUTPUT_CLOSED
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (DeploymentError, WorkerFault, UnreadableLine) as error:
        _complain(str(error))
    return NOT_DONE


def _make_parser() -> argparse.ArgumentParser:
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


def _open_file(name: str) -> BinaryIO:
    """Open a file that only the end of the process closes: closing would wait for a read."""
    return open(sys.stdin.fileno() if name == "-" else name, "rb", closefd=name != "-")


def _complain(text: str) -> None:
    for line in text.splitlines():
        print(f"weir grade: {line}", file=sys.stderr)


def _grade(file: BinaryIO) -> int:
    """Grade lines in batches; the next batch is read when the last one is done."""
    settings = Settings.from_environment()
    status = DONE
    pool = Pool(settings.workers, warm_ups=[WARM_UP])
    slots = asyncio.Semaphore(settings.workers)
    tools = Tools(pool)

    async def grade_lines(lines: Iterable[bytes]) -> list[dict[str, Any] | BaseException]:
        verdicts = (_grade_line(line, tools, slots) for line in lines)
        return await asyncio.gather(*verdicts, return_exceptions=True)

    with asyncio.Runner() as runner:
        runner.run(pool.__aenter__())
        try:
            lines = enumerate(raw_lines(file, MAX_LINE_BYTES), start=1)
            while batch := dict(islice(lines, _BATCH_LINES)):
                verdicts = runner.run(grade_lines(batch.values()))
                for number, verdict in zip(batch, verdicts, strict=True):
                    if isinstance(verdict, UnreadableLine):
                        _complain(f"line {number}: {verdict}")
                        status = NOT_DONE
                        verdict = _UNREADABLE
                    if isinstance(verdict, BaseException):
                        raise verdict
                    _write(verdict)
        finally:
            runner.run(pool.__aexit__())
    return status


async def _grade_line(line: bytes, tools: Tools, slots: asyncio.Semaphore) -> dict[str, Any]:
    """Return the verdict on a line, None if ungradable, the rule that decided, and the time."""
    response, answer, problem = _parse_texts(line)
    async with slots:
        started = time.perf_counter()
        score, path = await decide_response(response, answer, tools, problem=problem)
        ms = round(1000 * (time.perf_counter() - started), 3)
    verdict = is_right(score.value) if isinstance(score, Graded) else None
    return {"verdict": verdict, "reason": score.reason, "path": path, "ms": ms}


def _parse_texts(line: bytes) -> list[str]:
    fields = {"problem": "", **_parse_object(line)}
    names = ("response", "answer", "problem")
    for name in names:
        if name not in fields:
            raise UnreadableLine(f"{name}: missing")
        if not isinstance(fields[name], str):
            raise UnreadableLine(f"{name}: must be text, in quotes")
    return [fields[name] for name in names]


def _parse_object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise UnreadableLine(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise UnreadableLine(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableLine("no JSON object")
    return value


def read_labelled(file: BinaryIO) -> list[Labelled]:
    solutions: list[Labelled] = []
    for number, line in enumerate(raw_lines(file, MAX_LINE_BYTES), start=1):
        try:
            if line.strip():
                solutions.append(Labelled.model_validate(_parse_object(line)))
        except (UnreadableLine, ValidationError) as error:
            problem = explain(error) if isinstance(error, ValidationError) else error
            raise UnreadableLine(f"line {number}: {problem}") from error
    if not solutions:
        raise UnreadableLine("line 1: the file has no labelled solution")
    return solutions


async def _calibrate(solutions: Sequence[Labelled]) -> int:
    judge = deployed_judges().get("")
    judges = {"": Judge(replace(judge, patient=False))} if judge else {}
    settings = replace(Settings.from_environment(), python=False)
    async with open_tools(settings, judges) as tools:
        for check, label in CALIBRATED:
            if check.verifier == "model_judge" and not judges:
                _complain(f"model_judge was not asked: {URL} is not set")
                continue
            cases = await score_cases(check, label, solutions, tools)
            _write({"verifier": check.verifier, "label": label, **summarize(cases)})
    return DONE


def _write(fields: dict[str, Any]) -> None:
    try:
        print(json.dumps(fields), flush=True)
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


if __name__ == "__main__":
    sys.exit(main())
