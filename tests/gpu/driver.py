"""Measures the parts of a table in forked processes, with a limit each and in all.

``python -m tests.gpu.driver NAME [WORD ...]``: the table NAME.toml of this folder names functions
of NAME.py, which return figures, and what is expected of these. Each part has a process of its own,
unless the table says that they share one. It ends with this process, and with it whatever it has
started. WEIR_REHEARSE=1 tries everything small on a CPU, where numbers say nothing.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from services.chassis.parent import die_with_parent
from tests import processes
from tests.architecture.project import ROOT

Json = dict[str, Any]
REHEARSES = os.environ.get("WEIR_REHEARSE") == "1"
_LINE_CHARS = 900
_PATIENCE = 8 if REHEARSES else 1  # a machine that rehearses may be busy


def read_table(name: str) -> Json:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())


def run(name: str, words: Sequence[str]) -> int:
    """Measure the parts of a table; return how many were not as expected.

    Each result is printed and written at once, to $OUT or to dist/. Words choose parts by their
    names, and LIMIT_S replaces the table's limit of all parts. START=spawn imports once a part.
    """
    processes.end_with_me()
    began = time.monotonic()
    table = read_table(name)
    os.environ |= table["environment"] | ({"DS_ACCELERATOR": "cpu"} if REHEARSES else {})
    end = began + float(os.environ.get("LIMIT_S", table["limit_s"]))
    parts = [p for p in table["part"] if not words or any(word in p["name"] for word in words)]
    sessions = [parts] if table["share_a_process"] else [[part] for part in parts]
    page = Path(os.environ.get("OUT", ROOT / "dist"), f"gpu-{name}.json")
    page.parent.mkdir(exist_ok=True)
    start = os.environ.get("START", table["start"])
    if start == "fork":
        import_module(f"tests.gpu.{name}")  # once, for all parts
    results: dict[str, Json] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # the parts share it
        for session in sessions:
            for part, result in _follow(start, name, session, end):
                results[part] = result
                page.write_text(json.dumps(results, indent=1))
                line = f"[{time.monotonic() - began:4.0f} s] {part}: {result}"
                print(line[:_LINE_CHARS], flush=True)
    return sum(bool(result["faults"]) for result in results.values())


def _follow(
    start: Any, name: str, session: Sequence[Json], end: float
) -> Iterator[tuple[str, Json]]:
    """Yield the result of each part of a session as soon as it is there."""
    context = multiprocessing.get_context(start)
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, session, writer, os.getpid()))
    process.start()
    writer.close()
    try:
        for part in session:
            began = time.monotonic()
            figures = _receive(reader, max(0, min(part["limit_s"] * _PATIENCE, end - began)))
            faults = _find_faults(part.get("expected", {}), figures)
            seconds = time.monotonic() - began
            yield part["name"], {"seconds": seconds, "faults": faults, "figures": figures}
            if reader.closed:
                break
    finally:
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(process.pid, signal.SIGKILL)
        process.join()


def _receive(reader: Connection, limit_s: float) -> Json:
    with suppress(EOFError):
        if reader.poll(limit_s):
            return reader.recv()
    reader.close()
    return {"error": f"no result within {limit_s:.0f} s, or its process has died"}


def _find_faults(expected: Json, figures: Json) -> list[str]:
    if "error" in figures:
        return [figures["error"]]
    faults = []
    for what, bound in expected.items():
        least, most = bound.get("least", -math.inf), bound.get("most", math.inf)
        value = figures.get(what, math.nan)
        is_compared = bound.get("on_cpus") or not REHEARSES
        if is_compared and not least <= value <= most:
            faults.append(f"{what} is {value:.4g}, not {least:g} to {most:g}: {bound['reason']}")
    return faults


def _measure(name: str, session: Sequence[Json], writer: Connection, parent: int) -> None:
    os.setpgid(0, 0)  # what it starts is in its group
    die_with_parent(parent)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print, too
    module = import_module(f"tests.gpu.{name}")
    for part in session:
        try:
            measured = getattr(module, part["measure"])(**part.get("options", {}))
            figures = {what: float(f"{value:.4g}") for what, value in measured.items()}
        except Exception as error:
            traceback.print_exc()
            figures = {"error": f"{type(error).__name__}: {error}"}
        writer.send(figures)
    os._exit(0)  # without a farewell to the ranks


if __name__ == "__main__":  # a process of the engine imports this file again
    sys.exit(run(sys.argv[1], sys.argv[2:]))
