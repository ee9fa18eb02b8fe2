"""Verbs that are processes of their own, since the gateway imports no other service."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

OF_OTHER_SERVICES = {
    "plan": ("services.learner.plan", "Show what a recipe takes to run."),
    "sft": (
        "services.learner.sft.__main__",
        "Have a model learn the solutions of a task file, before a job.",
    ),
    "grade": (
        "services.grader.offline.__main__",
        "Grade responses, or measure graders by labelled ones.",
    ),
    "data": (
        "services.data.__main__",
        "Import tasks from a dataset, and check task files.",
    ),
    "replay": ("services.learner.replay", "Grade a step again, and show what a recipe changes."),
    "compose": ("deploy.compose", "Write what a machine's GPUs add to docker-compose.yml."),
}
_AS_THEY_ARE = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
verbs = typer.Typer()


@verbs.command()
def up(
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the cluster's head, such as auto.")
    ] = None,
) -> None:
    """Start the stack on this machine, or on a Ray cluster."""
    if ray is not None:
        _become("deploy.ray_cluster", [ray])
    _become("deploy.local", ["up"])


@verbs.command()
def down() -> None:
    """Stop the stack that was started here."""
    _become("deploy.local", ["down"])


def _add(name: str, module: str, text: str) -> None:
    @verbs.command(name, help=text, add_help_option=False, context_settings=_AS_THEY_ARE)
    def verb(context: typer.Context) -> None:
        _become(module, context.args)


for name, (module, text) in OF_OTHER_SERVICES.items():
    _add(name, module, text)


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    command = (sys.executable, "-m", "services.chassis.command", module, *arguments)
    os.execv(sys.executable, command)
