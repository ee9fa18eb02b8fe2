"""``weir grade``: grade the responses of a file, or measure the graders by labelled solutions.

Exit status: 0 every line was read, or the report was made; 2 anything else; 130 Ctrl-C; 141 the
reader of standard output went away.
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
from protocol.recipe import explain
from protocol.tasks import raw_lines
from pydantic import ValidationError

from services.chassis.deployment import DeploymentError
from services.chassis.faults import WorkerFault
from services.chassis.pool import Pool
from services.grader.judge.judge import Judge
from services.grader.judge.settings import URL, deployed_judges
from services.grader.offline.calibration import CALIBRATED, Labelled, cases_of, summary
from services.grader.tools import Settings, Tools
from services.grader.verifiers.math_answer import WARM_UP, decide_response
from services.grader.worker import opened

MAX_LINE_BYTES = 64 << 20
DONE, NOT_DONE, INTERRUPTED, NOBODY_READS = 0, 2, 130, 141
_UNREADABLE = {"verdict": None, "reason": "unreadable_line", "path": None, "ms": 0.0}
_LINES_AT_ONCE = 32


class UnreadableLine(ValueError):
    """A line that cannot be used; the text says why."""


class ReaderGone(RuntimeError):
    """Whoever read standard output has closed it: `head` does that."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        file = _opened(given.file)
        return asyncio.run(_calibrate(read_labelled(file))) if given.calibrate else _grade(file)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        return NOBODY_READS
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (DeploymentError, WorkerFault, UnreadableLine) as error:
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
    pool, places = Pool(settings.workers, warm_ups=[WARM_UP]), asyncio.Semaphore(settings.workers)
    tools = Tools(pool)

    async def verdicts(lines: Iterable[bytes]) -> list[dict[str, Any] | BaseException]:
        asked = (_verdict(line, tools, places) for line in lines)
        return await asyncio.gather(*asked, return_exceptions=True)

    with asyncio.Runner() as runner:
        runner.run(pool.__aenter__())
        try:
            lines = enumerate(raw_lines(file, MAX_LINE_BYTES), start=1)
            while some := dict(islice(lines, _LINES_AT_ONCE)):
                found = runner.run(verdicts(some.values()))
                for number, verdict in zip(some, found, strict=True):
                    if isinstance(verdict, UnreadableLine):
                        _complain(f"line {number}: {verdict}")
                        status, verdict = NOT_DONE, _UNREADABLE
                    if isinstance(verdict, BaseException):
                        raise verdict
                    _write(verdict)
        finally:
            runner.run(pool.__aexit__())
    return status


async def _verdict(line: bytes, tools: Tools, places: asyncio.Semaphore) -> dict[str, Any]:
    """On the response of a line; None for what could not be graded.

    ``path`` names what decided; ``ms`` is the time that it took, in milliseconds.
    """
    response, answer, problem = _texts(line)
    async with places:
        began = time.perf_counter()
        score, path = await decide_response(response, answer, tools, problem=problem)
        ms = round(1000 * (time.perf_counter() - began), 3)
    verdict = is_right(score.value) if isinstance(score, Graded) else None
    return {"verdict": verdict, "reason": score.reason, "path": path, "ms": ms}


def _texts(line: bytes) -> list[str]:
    fields = {"problem": "", **_json_object(line)}
    names = ("response", "answer", "problem")
    for name in names:
        if name not in fields:
            raise UnreadableLine(f"{name}: missing")
        if not isinstance(fields[name], str):
            raise UnreadableLine(f"{name}: must be text, in quotes")
    return [fields[name] for name in names]


def _json_object(line: bytes) -> dict[str, Any]:
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
    found: list[Labelled] = []
    for number, line in enumerate(raw_lines(file, MAX_LINE_BYTES), start=1):
        try:
            if line.strip():
                found.append(Labelled.model_validate(_json_object(line)))
        except (UnreadableLine, ValidationError) as error:
            why = explain(error) if isinstance(error, ValidationError) else error
            raise UnreadableLine(f"line {number}: {why}") from error
    if not found:
        raise UnreadableLine("line 1: the file holds no labelled solution")
    return found


async def _calibrate(solutions: Sequence[Labelled]) -> int:
    own = deployed_judges().get("")
    judges = {"": Judge(replace(own, patient=False))} if own else {}
    settings = replace(Settings.from_environment(), python=False)  # nothing here runs clients' code
    async with opened(settings, judges) as tools:
        for check, label in CALIBRATED:
            if check.verifier == "model_judge" and not judges:
                _complain(f"model_judge was not asked: {URL} is not set")
                continue
            cases = await cases_of(check, label, solutions, tools)
            _write({"verifier": check.verifier, "label": label, **summary(cases)})
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
