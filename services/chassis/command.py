"""Runs a command of Weir, without a traceback for mistakes of the user.

``python -m services.chassis.command MODULE [ARGUMENT]...`` runs the ``main`` of a module.
"""

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

BAD_INPUT = 2
INTERRUPTED = 130
OUTPUT_CLOSED = 141


def run_command(module: str, arguments: Sequence[str]) -> int:
    """Import a module, run its ``main(arguments)``, and return the exit status.

    It is 130 after Ctrl-C, 141 if the reader of the output is gone, 2 if a file cannot be used.
    """
    main = _import(module).main
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold any character
    try:
        with _flushing():
            return main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        status = OUTPUT_CLOSED
    except OSError as error:
        print(f"weir: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        status = BAD_INPUT
    # The interpreter flushes the buffers at its end, which must not fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _import(module: str) -> Any:
    ctrl_c = signal.getsignal(signal.SIGINT)
    # An import might catch or wrap KeyboardInterrupt.
    if ctrl_c is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        return importlib.import_module(module)
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


@contextmanager
def _flushing() -> Iterator[None]:
    """Flush the output. Raise `BrokenPipeError` if rich or typer turned it into `SystemExit`."""
    try:
        yield
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1], sys.argv[2:]))
