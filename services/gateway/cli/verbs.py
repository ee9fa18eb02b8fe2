"""The verbs of ``weir``, one file per group of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import protocol
import typer
from protocol.recipe import RecipeError
from protocol.tasks import TaskFileError
from typer.main import get_command

from services.chassis.command import BAD_INPUT
from services.gateway.cli import jobs, processes, results
from services.gateway.cli.terminal import complain, say
from services.gateway.client.client import WeirError
from services.gateway.client.stack import NoStack
from services.gateway.tracking.follow import BadTarget

weir = typer.Typer(
    rich_markup_mode=None,
    epilog="Exit status: 0 done, 1 the job failed or was cancelled, 2 wrong input or no gateway, "
    "130 Ctrl-C, 141 nobody reads the output.",
)
for group in (jobs, results, processes):
    weir.add_typer(group.verbs)


def main(arguments: Sequence[str]) -> int:
    """Run one verb; returns the exit status."""
    try:
        return get_command(weir)(list(arguments), prog_name="weir", standalone_mode=False) or 0
    except typer.TyperException as error:
        message = error.format_message()
        stop = "" if message.endswith((".", "?")) else "."
        complain(f"{message}{stop} `weir --help` and `weir VERB --help` say more.")
    except (RecipeError, TaskFileError, NoStack, WeirError, BadTarget) as error:
        complain(error)
    return BAD_INPUT


@weir.command()
def version() -> None:
    """Show the version."""
    say(f"weir {protocol.__version__}")


def _version_alone(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@weir.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version_alone, help="Show the version.")
    ] = False,
) -> None:
    """Train a model to reason."""
