"""``weir plan RECIPE``: a recipe with all its defaults, and the memory and time that it takes.

Nothing is downloaded or sent; a small copy of a local model is tried. Exit status: 0, or 2 if the
job has a problem, or the recipe or an option is wrong.
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
from protocol.recipe import Recipe, load_recipe
from protocol.recipe_files import RecipeError
from protocol.rewards import Check
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.chassis.deployment import DeploymentError
from services.learner.planning.advice import find_problems, warnings
from services.learner.planning.footprint import Item, LearnerFootprint, RolloutFootprint, total
from services.learner.planning.machine import LocalMachine, Options, parse_part, resolve_machine
from services.learner.planning.plan import ModelFiles, Plan, make_plan
from services.learner.planning.prompts import prompt_remarks
from services.learner.planning.seconds import ASSUMED
from services.learner.planning.shapes import ModelShape, UnknownModel
from services.learner.planning.units import format_bytes, format_range

BAD_INPUT = 2
_MAX_GIB = 2**20  # a larger option is a mistake
_DRIVER_TIMEOUT_S = 10
_FILE_WIDTH = 160  # columns, if the output is not a terminal
_FITS = {True: "fits", False: "does not fit"}
_DEFAULT_MARK = "  # default"
Row = tuple[str, str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(Path(options.recipe))
        machine_options = Options(
            options.gpus, options.gpu_memory, options.host_memory, options.flops_used
        )
        machine = resolve_machine(machine_options, recipe.machine, os.environ, _local_machine())
        plan = make_plan(recipe, machine, _measure_model)
        plan = _try_models(plan)
        plan = replace(plan, remarks=(*plan.remarks, *prompt_remarks(plan)))
    except (RecipeError, PlacementError, DeploymentError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.json:
        print(json.dumps(to_json(plan), indent=1, default=str))
    else:
        print_plan(plan)
    return BAD_INPUT if find_problems(plan) else 0


def _measure_model(folder: Path) -> ModelShape:
    try:
        from services.learner.training.model_check import count_parameters
    except ImportError as error:
        raise UnknownModel(f"{error}; run weir plan where the learner is installed") from error
    return count_parameters(folder)


def _try_models(plan: Plan) -> Plan:
    """Add the problems and remarks of the models, if they and torch are on this machine."""
    policy, *critics = (model.folder for model in plan.models)
    if policy is None:
        return plan
    # DeepSpeed would look for GPUs, and print which it finds.
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        from services.learner.training.model_check import UnsupportedModel
        from services.learner.training.trial import try_models
    except ImportError as error:
        remark = f"the model was not tried: {error}; run weir plan where the learner is installed"
        return replace(plan, remarks=(*plan.remarks, remark))
    try:
        remarks = try_models(policy, next(iter(critics), None), plan.recipe.model.max_context)
    except UnsupportedModel as error:
        return replace(plan, problems=(f"the job would be refused: {error}",))
    return replace(plan, remarks=(*plan.remarks, *remarks))


def print_plan(plan: Plan) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    problems = find_problems(plan)
    if problems:
        _print_findings(console, "problem", problems, "red")
    for line in resolved_toml(plan.recipe):
        style = "dim" if line.endswith(_DEFAULT_MARK) else ""
        console.print(Text(line, style), soft_wrap=True)
    for title, rows in _sections(plan):
        console.print(Text(f"\n{title}", style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    _print_findings(console, "warning", warnings(plan), "yellow")
    if problems:
        console.print(Text("it has problems: see the beginning", style="red"))


def _print_findings(console: Console, word: str, texts: Sequence[str], style: str) -> None:
    plural = "" if len(texts) == 1 else "s"
    console.print(Text(f"\n{len(texts) or 'no'} {word}{plural}", style="bold"))
    for text in texts:
        console.print(Text(f"! {text}", style=style))


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data, with sizes in bytes."""
    recipe = plan.recipe
    machine = plan.machine
    fields = asdict(plan)
    fields["machine"] |= {
        "learner_bytes": machine.learner_bytes,
        "engine_bytes": machine.engine_bytes,
    }
    if plan.learner is not None:
        fields["learner"] |= {"peak": plan.learner.peak, "fits": plan.learner_fits}
        fields["rollout"] |= {"fits": plan.engine_fits}
    seconds = None
    if fields.pop("seconds"):
        *parts, step, run = (asdict(span) | {"range": span.range} for span in plan.seconds)
        seconds = {
            "gpu": machine.kind.name,
            "assumed": ASSUMED,
            "parts": parts,
            "total": step,
            "run": run,
        }
    items = [asdict(item) for item in plan.host]
    return fields | {
        "recipe": recipe.model_dump(mode="json"),
        "defaults": sorted(name for name, _, is_default in _settings(recipe) if is_default),
        "placement": {"line": str(machine.placement), "how": machine.how},
        "host": {"bytes": total(plan.host), "items": items, "fits": plan.host_fits},
        "seconds_by_arithmetic": seconds,
        "redis": {"bytes": plan.redis_bytes},
        "in_flight": {"groups": recipe.groups_in_flight, "responses": responses_in_flight(recipe)},
        "tokens_per_step": _max_step_tokens(recipe),
        "problems": find_problems(plan),
        "warnings": warnings(plan),
    }


def resolved_toml(recipe: Recipe) -> Iterator[str]:
    """Yield the recipe as TOML with every setting; defaults are marked ``# default``."""
    table = ""
    for name, value, is_default in _settings(recipe):
        path, _, field = name.rpartition(".")
        if path != table:
            table = path
            yield from ("", f"[{table}]")
        line = f"# {field} is not set" if value is None else f"{field} = {_to_toml(value)}"
        yield line + _DEFAULT_MARK * is_default


def _settings(
    table: BaseModel, prefix: str = "", *, all_default: bool = False
) -> Iterator[tuple[str, Any, bool]]:
    """Yield dotted name, value and whether it is the default; nested tables come last."""
    nested: list[tuple[BaseModel, str, bool]] = []
    for name in type(table).model_fields:
        value = getattr(table, name)
        is_default = all_default or name not in table.model_fields_set
        if isinstance(value, BaseModel):
            nested.append((value, f"{prefix}{name}.", is_default))
        else:
            yield f"{prefix}{name}", value, is_default
    for nested_table, nested_prefix, is_default in nested:
        yield from _settings(nested_table, nested_prefix, all_default=is_default)


def _to_toml(value: Any) -> str:
    """Return a value as TOML on one line; an inline table leaves unset fields out."""
    if isinstance(value, Check) and value == Check(verifier=value.verifier):
        value = value.verifier
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        pairs = [f"{key} = {_to_toml(field)}" for key, field in value.items() if field is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _sections(plan: Plan) -> Iterator[tuple[str, Iterable[Row]]]:
    machine = plan.machine
    placement = machine.placement
    yield "Files", _file_rows(plan)
    yield "Work", _work_rows(plan)
    devices = placement if placement.uses_gpus else "on CPUs"
    ranks = f"ranks of the learner: {placement.num_ranks}; engines: {len(placement.rollouts)}"
    yield f"Placement: {devices} ({machine.how}), {ranks}", ()
    memory = "rank" if machine.on_cpus else f"GPU of {format_bytes(machine.gpu_bytes)}"
    if plan.learner is not None:
        yield f"Learner: memory of a {memory}", _learner_rows(plan, plan.learner)
    if plan.rollout is not None:
        engine = "" if machine.on_cpus else f", of the smallest engine, {machine.engine}"
        yield f"Rollout: memory of a {memory}{engine}", _rollout_rows(plan, plan.rollout)
    if plan.host:
        usable = "unknown size: --host-memory"
        verdict = "taken"
        if machine.host_bytes is not None:
            usable = format_bytes(machine.usable_host_bytes)
            usable = f"{format_bytes(machine.host_bytes)}, usable: {usable}"
            verdict = _FITS[plan.host_fits]
        formula = "without the programs themselves, Redis and the judge"
        rows = [*_item_rows(plan.host), (verdict, format_bytes(total(plan.host)), formula)]
        yield f"Memory of a node ({usable})", rows
    if plan.seconds:
        rows = [(span.what, format_range(*span.range), span.formula) for span in plan.seconds]
        rows.append(("assumed", "", ASSUMED))
        verdict = "was not" if machine.flops_used is None else "was"
        yield f"Time, by arithmetic ({machine.kind.name}; its speed {verdict} measured)", rows


def _file_rows(plan: Plan) -> Iterator[Row]:
    for model in plan.models:
        location = _locate(model, hub=plan.machine.model_hub)
        text = f"{location}; its shape: {model.shape_source}"
        yield f"model of the {model.role}", model.path, text
    for tasks in plan.tasks:
        yield tasks.field, tasks.path, tasks.problem or f"found: {tasks.num_tasks} tasks"


def _locate(model: ModelFiles, *, hub: bool) -> str:
    if model.folder is not None:
        return f"found: {model.folder}"
    if model.problem is not None:
        return "refused"
    if not hub:
        return "not here"
    size = f", about {format_bytes(2 * model.shape.parameters)}" if model.shape else ""
    return f"to download{size}"


def _work_rows(plan: Plan) -> Iterator[Row]:
    recipe = plan.recipe
    training = recipe.training
    group_size = recipe.rollout.group_size
    yield (
        "tokens of a step, at most",
        f"{_max_step_tokens(recipe):,}",
        f"groups_per_step {training.groups_per_step} x group_size {group_size} x "
        f"{_longest_response(recipe)}; {training.updates_per_batch} updates",
    )
    for check in recipe.reward.judge_checks:
        yield (
            f"calls of {check.label} a step",
            f"{training.groups_per_step * group_size * check.samples:,}",
            "at most; of a judge (WEIR_JUDGE_URL of the graders) whose context holds a prompt, "
            f"its solution, a response and max_tokens {check.max_tokens:,}",
        )
    formula = worst_case_in_words(recipe, plan.held_out)
    yield "Redis, at worst", format_bytes(plan.redis_bytes), formula


def _max_step_tokens(recipe: Recipe) -> int:
    responses = recipe.training.groups_per_step * recipe.rollout.group_size
    return responses * recipe.longest_response


def _longest_response(recipe: Recipe) -> str:
    turn = f"max_tokens {recipe.rollout.sampling.max_tokens}"
    if recipe.environment is None:
        return turn
    max_context = recipe.model.max_context
    return f"min(max_turns {recipe.environment.max_turns} x {turn}, max_context {max_context} - 1)"


def _learner_rows(plan: Plan, learner: LearnerFootprint) -> Iterator[Row]:
    machine = plan.machine
    yield from _item_rows(learner.resident)
    yield "resident", format_bytes(total(learner.resident)), ""
    yield from _item_rows((*learner.backward, *learner.step))
    backward = format_bytes(total(learner.backward))
    step = format_bytes(total(learner.step))
    formula = f"resident + max(backward {backward}, optimizer's step {step})"
    yield "peak", format_bytes(learner.peak), formula
    if machine.on_cpus:
        return
    formula = "are usable"
    if machine.takes_turns:
        formula += f", {format_bytes(machine.learner_bytes_at_rest)} between its turns"
    yield _FITS[plan.learner_fits], format_bytes(machine.learner_bytes), formula


def _rollout_rows(plan: Plan, rollout: RolloutFootprint) -> Iterator[Row]:
    machine = plan.machine
    yield from _item_rows((rollout.weights, rollout.cache))
    formula = f"{machine.engine_part(machine.engine):.0%} of the GPU, less the weights"
    if cache_bytes := machine.engine_cache_bytes:
        limit = format_bytes(cache_bytes)
        formula = f"at most {limit} (WEIR_ROLLOUT_KV_CACHE_MIB), or the rest beside the weights"
    yield "room for keys and values", format_bytes(rollout.room), formula
    responses = f"{rollout.responses_held} of {rollout.responses_asked}"
    formula = "at once in an engine; the others wait, or share as long as they are short"
    yield "responses at full length", responses, formula
    if not machine.on_cpus:
        yield _FITS[plan.engine_fits], format_bytes(machine.engine_bytes), "are usable"
    for problem in plan.split_problems:
        yield "does not work", "", problem


def _item_rows(items: Iterable[Item]) -> list[Row]:
    return [(item.what, format_bytes(item.bytes), item.formula) for item in items]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir plan", description="Show the files, memory and time that a recipe takes."
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--json", action="store_true", help="machine-readable, sizes in bytes")
    parser.add_argument(
        "--gpus",
        metavar="GPUS",
        help="their number, or a line such as 'learner=0-3 rollout=4,5 rollout=6,7'; default: "
        "WEIR_GPUS, else those of this machine, else the recipe's [machine], else CPUs",
    )
    for option, device in (("--gpu-memory", "a GPU"), ("--host-memory", "a node")):
        text = f"of {device}; default: that of this machine, or of the recipe"
        parser.add_argument(option, type=_parse_gib, metavar="GIB", help=text)
    text = (
        "of a GPU's peak FLOP/s in training, as `make gpu-report` measures it; default: an estimate"
    )
    parser.add_argument("--flops-used", type=_parse_share, metavar="SHARE", help=text)
    return parser


def _parse_gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < value <= _MAX_GIB:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MAX_GIB:,}")
    return value


def _parse_share(text: str) -> float:
    try:
        return parse_part(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _local_machine() -> LocalMachine:
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    command = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    gpu_bytes = None  # without GPUs, or with a driver that does not report their memory
    try:
        output = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=_DRIVER_TIMEOUT_S
        )
        gpu_bytes = min(map(int, output.split())) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        pass
    return LocalMachine(tuple(os.listdir("/dev")), host_bytes, gpu_bytes)


if __name__ == "__main__":
    sys.exit(main())
