"""``weir plan RECIPE``: what a recipe means with all its defaults, and what it takes to run.

Nothing is downloaded or sent; a small copy of a model that is here is tried. Exit status: 0, or 2
if the recipe or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from protocol.capacity import responses_in_flight, worst_case_in_words
from protocol.placement import PlacementError
from protocol.recipe import Recipe, RecipeError, load_recipe
from protocol.rewards import Check
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.chassis.deployment import DeploymentError
from services.learner.planning.footprint import (
    Item,
    LearnerFootprint,
    ModelShape,
    RolloutFootprint,
    UnknownModel,
    total,
)
from services.learner.planning.machine import Here, Options, machine_of
from services.learner.planning.plan import ASSUMED, Plan, make_plan, size, warnings
from services.learner.planning.prompts import prompt_remarks

BAD_INPUT = 2
_MOST_GIB = 2**20  # what is above is a mistake
_FITS = {True: "fits", False: "does not fit"}
_MARK = "  # default"
_WIDTH_OF_A_FILE = 160
Row = tuple[str, str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(Path(given.recipe))
        options = Options(given.gpus, given.gpu_memory, given.host_memory)
        machine = machine_of(options, recipe.machine, os.environ, _this_machine())
        plan = make_plan(recipe, machine, _measured)
        plan = replace(plan, remarks=(*plan.remarks, *_tried(plan), *prompt_remarks(plan)))
    except (RecipeError, PlacementError, DeploymentError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.json:
        print(json.dumps(as_json(plan), indent=1, default=str))
    else:
        show(plan)
    return 0


def _measured(folder: Path) -> ModelShape:
    try:
        from services.learner.training.model_check import count_parameters
    except ImportError as error:
        raise UnknownModel(f"{error}; run weir plan where the learner is installed") from error
    return count_parameters(folder)


def _tried(plan: Plan) -> Iterator[str]:
    """What a trial of the models says; nothing where they, or torch, are not here."""
    policy, *critics = (model.folder for model in plan.models)
    if policy is None:
        return
    os.environ["DS_ACCELERATOR"] = "cpu"  # else DeepSpeed looks for GPUs, and prints what it finds
    try:
        from services.learner.training.model_check import UnsupportedModel
        from services.learner.training.trial import try_models
    except ImportError as error:
        yield f"the model was not tried: {error}; run weir plan where the learner is installed"
        return
    try:
        yield from try_models(policy, next(iter(critics), None), plan.recipe.model.max_context)
    except UnsupportedModel as error:
        yield f"the job would be refused: {error}"


def show(plan: Plan) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_A_FILE)
    for line in resolved(plan.recipe):
        console.print(Text(line, "dim" if line.endswith(_MARK) else ""), soft_wrap=True)
    for title, rows in _sections(plan):
        console.print(Text(f"\n{title}", style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    found = warnings(plan)
    number = f"{len(found) or 'no'} warning{'s' if len(found) != 1 else ''}"
    console.print(Text(f"\n{number}", style="bold"))
    for text in found:
        console.print(Text(f"! {text}", style="yellow"))


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, sizes in bytes."""
    data, recipe, machine = asdict(plan), plan.recipe, plan.machine
    bytes_of = {"learner_bytes": machine.learner_bytes, "engine_bytes": machine.engine_bytes}
    data["machine"] |= bytes_of
    if plan.learner is not None:
        data["learner"] |= {"peak": plan.learner.peak, "fits": plan.learner_fits}
        data["rollout"] |= {"fits": plan.engine_fits}
    known = None
    if spans := data.pop("seconds"):
        *parts, step, run = spans
        known = {"gpu": machine.kind.name, "assumed": ASSUMED}
        known |= {"parts": parts, "total": step, "run": run}
    host = [asdict(item) for item in plan.host]
    return data | {
        "recipe": recipe.model_dump(mode="json"),
        "defaults": sorted(name for name, _, is_default in _settings(recipe) if is_default),
        "placement": {"line": str(machine.placement), "how": machine.how},
        "host": {"bytes": total(plan.host), "items": host, "fits": plan.host_fits},
        "seconds_by_arithmetic": known,
        "redis": {"bytes": plan.redis_bytes},
        "in_flight": {"groups": recipe.groups_in_flight, "responses": responses_in_flight(recipe)},
        "tokens_per_step": _most_tokens(recipe),
        "warnings": warnings(plan),
    }


def resolved(recipe: Recipe) -> Iterator[str]:
    """The recipe as TOML with every setting, those that the file left out marked ``# default``."""
    table = ""
    for name, value, is_default in _settings(recipe):
        tables, _, last = name.rpartition(".")
        if tables != table:
            table = tables
            yield from ("", f"[{table}]")
        line = f"# {last} is not set" if value is None else f"{last} = {_toml(value)}"
        yield line + _MARK * is_default


def _settings(
    table: BaseModel, prefix: str = "", *, all_default: bool = False
) -> Iterator[tuple[str, Any, bool]]:
    """Dotted name, value, whether it is the default; a table's own before those of its tables."""
    nested: list[tuple[BaseModel, str, bool]] = []
    for name in type(table).model_fields:
        value, is_default = getattr(table, name), all_default or name not in table.model_fields_set
        if isinstance(value, BaseModel):
            nested.append((value, f"{prefix}{name}.", is_default))
        else:
            yield f"{prefix}{name}", value, is_default
    for within, its_prefix, is_default in nested:
        yield from _settings(within, its_prefix, all_default=is_default)


def _toml(value: Any) -> str:
    """A value as TOML on one line, without what is not set in an inline table."""
    if isinstance(value, Check) and value == Check(verifier=value.verifier):
        value = value.verifier
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        pairs = [f"{key} = {_toml(each)}" for key, each in value.items() if each is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _sections(plan: Plan) -> Iterator[tuple[str, Iterable[Row]]]:
    machine, placement = plan.machine, plan.machine.placement
    yield "Files", _file_rows(plan)
    yield "Work", _work_rows(plan)
    each, of = ("rank", "") if machine.on_cpus else ("GPU", f" of {size(machine.gpu_bytes)}")
    where = placement if placement.uses_gpus else "on CPUs"
    engines = len(placement.rollouts)
    bundles = f"ranks of the learner: {placement.num_ranks}; engines: {engines}"
    yield f"Placement: {where} ({machine.how}), {bundles}", ()
    if plan.learner is not None:
        yield f"Learner: memory of a {each}{of}", _learner_rows(plan, plan.learner)
    if plan.rollout is not None:
        smallest = "" if machine.on_cpus else f", of the smallest engine, {machine.engine}"
        yield f"Rollout: memory of a {each}{of}{smallest}", _rollout_rows(plan, plan.rollout)
    if plan.host:
        there, fits = "how much there is was not said: --host-memory", "taken"
        if machine.host_bytes is not None:
            there = f"{size(machine.host_bytes)}, usable: {size(machine.usable_host_bytes)}"
            fits = _FITS[plan.host_fits]
        besides = "beside the programs themselves, Redis and the judge"
        rows = [*_rows(plan.host), (fits, size(total(plan.host)), besides)]
        yield f"Memory of a node ({there})", rows
    if plan.seconds:
        rows = [(span.what, duration(span.seconds), span.formula) for span in plan.seconds]
        title = f"Time, by arithmetic ({machine.kind.name}; no GPU was measured)"
        yield title, [*rows, ("assumed", "", ASSUMED)]


def _file_rows(plan: Plan) -> Iterator[Row]:
    for model in plan.models:
        where = "refused" if model.problem is not None else "not here"
        if model.folder is not None:
            where = f"found: {model.folder}"
        elif model.problem is None and plan.machine.model_hub:
            about = f", about {size(2 * model.shape.parameters)}" if model.shape else ""
            where = f"to download{about}"
        yield f"model of the {model.role}", model.path, f"{where}; its shape: {model.shape_source}"
    for tasks in plan.tasks:
        yield tasks.field, tasks.path, tasks.problem or f"found: {tasks.num_tasks} tasks"


def _work_rows(plan: Plan) -> Iterator[Row]:
    recipe, training, group = plan.recipe, plan.recipe.training, plan.recipe.rollout.group_size
    yield (
        "tokens of a step, at most",
        f"{_most_tokens(recipe):,}",
        f"groups_per_step {training.groups_per_step} x group_size {group} x {_longest(recipe)}; "
        f"{training.updates_per_batch} updates",
    )
    for check in recipe.reward.checks_of_a_judge:
        yield (
            f"calls of {check.label} a step",
            f"{training.groups_per_step * group * check.samples:,}",
            "at most; of a judge (WEIR_JUDGE_URL of the graders) whose context holds a prompt, "
            f"its solution, a response and max_tokens {check.max_tokens:,}",
        )
    yield "Redis, at worst", size(plan.redis_bytes), worst_case_in_words(recipe, plan.held_out)


def _most_tokens(recipe: Recipe) -> int:
    responses = recipe.training.groups_per_step * recipe.rollout.group_size
    return responses * recipe.longest_response


def _longest(recipe: Recipe) -> str:
    of_turn = f"max_tokens {recipe.rollout.sampling.max_tokens}"
    if recipe.environment is None:
        return of_turn
    turns, context = recipe.environment.max_turns, recipe.model.max_context
    return f"min(max_turns {turns} x {of_turn}, max_context {context} - 1)"


def _learner_rows(plan: Plan, learner: LearnerFootprint) -> Iterator[Row]:
    yield from _rows(learner.held)
    yield "held all the time", size(total(learner.held)), ""
    yield from _rows((*learner.backward, *learner.step))
    backward, step = size(total(learner.backward)), size(total(learner.step))
    words = f"held + max(backward {backward}, optimizer's step {step})"
    yield "peak", size(learner.peak), words
    if not plan.machine.on_cpus:
        between = f", {size(plan.machine.learner_bytes_at_rest)} between its turns"
        words = "are usable" + between * plan.machine.takes_turns
        yield _FITS[plan.learner_fits], size(plan.machine.learner_bytes), words


def _rollout_rows(plan: Plan, rollout: RolloutFootprint) -> Iterator[Row]:
    machine = plan.machine
    yield from _rows((rollout.weights, rollout.cache))
    words = f"{machine.share_of(machine.engine):.0%} of the GPU, less the weights"
    if cache := machine.engine_cache_bytes:
        words = f"at most {size(cache)} (WEIR_ROLLOUT_KV_CACHE_MIB), or what the weights leave"
    yield "room for keys and values", size(rollout.room), words
    held = f"{rollout.responses_held} of {rollout.responses_asked}"
    words = "at once in an engine; the others wait, or share as long as they are short"
    yield "responses at full length", held, words
    if not machine.on_cpus:
        yield _FITS[plan.engine_fits], size(machine.engine_bytes), "are usable"
    yield from (("does not work", "", problem) for problem in plan.split_problems)


def _rows(items: Iterable[Item]) -> list[Row]:
    return [(item.what, size(item.bytes), item.formula) for item in items]


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(36.94), duration(1880.0), duration(82_523.0), duration(14_631_019.0)
    ('36.9 s', '31 min', '23 h', '169 days')
    """
    for least, unit, name in ((172_800, 86_400, "days"), (7200, 3600, "h"), (600, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit:,.{int(seconds < 10 * unit)}f} {name}"
    return f"{seconds:,.1f} s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir plan", description="Show what a recipe takes to run; nothing is started."
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--json", action="store_true", help="machine-readable, sizes in bytes")
    parser.add_argument(
        "--gpus",
        metavar="GPUS",
        help="their number, or a line such as 'learner=0-3 rollout=4,5 rollout=6,7'; else "
        "WEIR_GPUS, else those of this machine, else the recipe's [machine], else CPUs",
    )
    for option, of in (("--gpu-memory", "a GPU"), ("--host-memory", "a node")):
        words = f"of {of}; else as here, or as in the recipe"
        parser.add_argument(option, type=_gib, metavar="GIB", help=words)
    return parser


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < value <= _MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MOST_GIB:,}")
    return value


def _this_machine() -> Here:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    asked = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    gpu_bytes = None  # without GPUs, or where their driver says nothing
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
        gpu_bytes = min(int(line) for line in said.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        pass
    return Here(tuple(os.listdir("/dev")), pages, gpu_bytes)


if __name__ == "__main__":
    sys.exit(main())
