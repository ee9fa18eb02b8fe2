"""How a command line of Weir begins and ends: without a traceback for what a person does.

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

BAD_INPUT, INTERRUPTED, NOBODY_READS = 2, 130, 141


def run_command(module: str, arguments: Sequence[str]) -> int:
    """Import a module and run its ``main(arguments)``; returns the exit status.

    That is 130 after Ctrl-C, 141 when nobody reads the output, 2 when a file cannot be used.
    """
    main = _imported(module).main
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold any character
    try:
        with _flushing():
            return main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        status = NOBODY_READS
    except OSError as error:
        print(f"weir: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        status = BAD_INPUT
    # What is still in the buffer goes nowhere, so that the interpreter can flush it when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _imported(module: str) -> Any:
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is signal.default_int_handler:  # whose exception an import might catch, or wrap
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        return importlib.import_module(module)
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


@contextmanager
def _flushing() -> Iterator[None]:
    """Write all output, and tell it as what it is if nobody reads that: rich and typer exit."""
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
