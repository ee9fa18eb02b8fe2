"""A plan for people: the recipe with its defaults, then tables of what it takes; or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from protocol.capacity import (
    evaluation_responses,
    groups_in_words,
    responses_in_flight,
    worst_case_in_words,
)
from protocol.recipe import Recipe
from protocol.rewards import Check
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.placement import Seat, split_problem
from services.learner.planning.footprint import Item, total
from services.learner.planning.machine import Machine
from services.learner.planning.plan import Plan
from services.learner.planning.speed import ASSUMED, StepSeconds
from services.learner.planning.warnings import warnings

_MARK = "  # default"
_WIDTH_OF_A_FILE = 160
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def show(plan: Plan, console: Console | None = None) -> None:
    """Print the plan."""
    console = console or _console()
    for line in resolved(plan.recipe):
        style = "dim" if line.endswith(_MARK) else ""
        console.print(Text(line, style), soft_wrap=True)
    for title, rows in _sections(plan):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(_table(rows))
    found = warnings(plan)
    number = f"{len(found) or 'no'} warning{'s' if len(found) != 1 else ''}"
    console.print(Text(f"\n{number}", style="bold"))
    for text in found:
        console.print(Text(f"! {text}", style="yellow"))


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, sizes in bytes."""
    recipe, training, machine = plan.recipe, plan.recipe.training, plan.machine
    return {
        "recipe": recipe.model_dump(mode="json"),
        "defaults": sorted(defaults_of(recipe)),
        "placement": {"line": str(machine.placement), "how": machine.how},
        "machine": asdict(machine)
        | {"learner_bytes": machine.learner_bytes, "engine_bytes": machine.engine_bytes},
        "models": [asdict(model) for model in plan.models],
        "tasks": [asdict(tasks) for tasks in plan.tasks],
        "host": {
            "bytes": total(plan.host),
            "items": [asdict(item) for item in plan.host],
            "fits": plan.host_fits,
        },
        "learner": plan.learner
        and asdict(plan.learner) | {"peak": plan.learner.peak, "fits": plan.learner_fits},
        "rollout": plan.rollout and asdict(plan.rollout) | {"fits": plan.engine_fits},
        "seconds_by_arithmetic": plan.seconds and asdict(plan.seconds) | {"assumed": ASSUMED},
        "redis": {
            "bytes": plan.redis_bytes,
            "formula": worst_case_in_words(recipe, plan.num_held_out),
        },
        "in_flight": {
            "groups": recipe.groups_in_flight,
            "responses": responses_in_flight(recipe),
        },
        "staleness": {"min": 0, "max": training.max_staleness},
        "tokens_per_step": _tokens_per_step(recipe),
        "warnings": warnings(plan),
    }


def _tokens_per_step(recipe: Recipe) -> int:
    """Response tokens of a training step at most."""
    responses = recipe.training.groups_per_step * recipe.rollout.group_size
    return responses * recipe.rollout.sampling.max_tokens


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)


def resolved(recipe: Recipe) -> Iterator[str]:
    """The recipe as TOML with every setting, those that the file left out marked ``# default``."""
    defaults = defaults_of(recipe)
    table = ""
    for name, value in _settings(recipe):
        *tables, last = name.split(".")
        if ".".join(tables) != table:
            table = ".".join(tables)
            yield ""
            yield f"[{table}]"
        mark = _MARK if name in defaults else ""
        yield f"# {last} is not set{mark}" if value is None else f"{last} = {_toml(value)}{mark}"


def defaults_of(recipe: Recipe) -> set[str]:
    """The dotted names of the settings that the recipe leaves to their defaults."""

    def walk(table: BaseModel, prefix: str, *, all_default: bool) -> Iterator[str]:
        for name in type(table).model_fields:
            value, is_default = getattr(table, name), name not in table.model_fields_set
            if isinstance(value, BaseModel):
                within = all_default or is_default
                yield from walk(value, f"{prefix}{name}.", all_default=within)
            elif all_default or is_default:
                yield f"{prefix}{name}"

    return set(walk(recipe, "", all_default=False))


def size(number: float) -> str:
    """Bytes for people.

    >>> size(3 * 2**30), size(5)
    ('3.0 GiB', '5 bytes')
    """
    for name, unit in _UNITS:
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} bytes"


def _settings(recipe: Recipe) -> list[tuple[str, Any]]:
    """Every setting by its dotted name; a table's own before those of the tables in it."""

    def walk(table: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
        values = {name: getattr(table, name) for name in type(table).model_fields}
        nested = {name: value for name, value in values.items() if isinstance(value, BaseModel)}
        yield from ((f"{prefix}{name}", values[name]) for name in values if name not in nested)
        for name, value in nested.items():
            yield from walk(value, f"{prefix}{name}.")

    return list(walk(recipe, ""))


def _toml(value: Any) -> str:
    """A value as TOML on one line; what is not set in an inline table is left out."""
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


Row = tuple[str, str, str]


def _sections(plan: Plan) -> Iterator[tuple[str, list[Row]]]:
    machine = plan.machine
    yield "Files", list(_files(plan))
    yield "Work", list(_work(plan))
    where = machine.placement if machine.placement.uses_gpus else "on CPUs"
    yield f"Placement: {where} ({machine.how})", list(_placement(plan))
    each = "rank" if machine.on_cpus else "GPU"
    of = "" if machine.on_cpus else f" of {size(machine.gpu_bytes)}"
    if plan.learner is not None:
        yield f"Learner: memory of a {each} ({machine.learner_gpus}{of})", list(_learner(plan))
    if plan.rollout is not None:
        engines = f"{machine.num_engines} x {machine.gpus_per_engine}{of}"
        yield f"Rollout: memory of a {each} ({engines})", list(_rollout(plan))
    if plan.host:
        yield f"Memory of a node ({_node(machine)})", list(_host(plan))
    if plan.seconds is not None:
        measured = f"{plan.seconds.gpu}; no GPU was measured"
        yield f"Seconds of a step, by arithmetic ({measured})", list(_seconds(plan.seconds))


def _node(machine: Machine) -> str:
    if machine.host_bytes is None:
        return "how much there is was not said: --host-memory"
    return f"{size(machine.host_bytes)}, usable: {size(machine.usable_host_bytes)}"


def _host(plan: Plan) -> Iterator[Row]:
    yield from _rows(plan.host)
    fits = "fits" if plan.host_fits else "does not fit"
    taken = "taken" if plan.machine.host_bytes is None else fits
    yield taken, size(total(plan.host)), "beside the programs themselves, Redis and the judge"


def _placement(plan: Plan) -> Iterator[Row]:
    """Who has which GPU, and whether what it holds fits there."""
    machine, learner = plan.machine, plan.learner
    for seat in machine.placement.learner:
        text = f"{seat.ranks} rank{'s' if seat.ranks > 1 else ''}"
        if learner is not None:
            each = ", each" if seat.ranks > 1 else ","
            text += f"{each} {size(learner.peak)}"
        if learner is not None and not machine.on_cpus:
            text += f" of {size(machine.learner_bytes)}: "
            text += "fits" if plan.learner_fits else "does not fit"
        yield _row_of(seat, text)
    for engine in machine.placement.rollouts:
        yield _row_of(engine, _of_engine(plan, engine))
    if machine.placement.judge is not None:
        yield _row_of(machine.placement.judge, "its model is not part of the recipe")
    if machine.placement.idle:
        yield _row_of(Seat("idle", machine.placement.idle), "")


def _of_engine(plan: Plan, engine: Seat) -> str:
    rollout, machine = plan.rollout, plan.machine
    policy, _ = plan.shapes
    if rollout is None or policy is None:
        return ""
    if problem := split_problem(max(1, len(engine.gpus)), policy.heads, policy.key_value_heads):
        return f"does not work: {problem}"
    smallest = machine.engine
    if (len(engine.gpus), engine.share) != (len(smallest.gpus), smallest.share):
        return f"counted as the smallest engine, {smallest}"
    parts = f"{size(rollout.weights.bytes)} of weights, {size(rollout.room)} for keys and values"
    if machine.on_cpus:
        return parts
    return f"{parts}, of {size(machine.engine_bytes)}: " + (
        "fits" if plan.engine_fits else "does not fit"
    )


def _row_of(seat: Seat, text: str) -> Row:
    role, _, gpus = str(seat).partition("=")
    return role, f"GPU {gpus}" if gpus else "CPU", text


def _seconds(step: StepSeconds) -> Iterator[Row]:
    for part in (*step.parts, step.total):
        yield part.what, f"{part.seconds:,.1f} s", part.formula
    yield "assumed", "", ASSUMED


def _files(plan: Plan) -> Iterator[Row]:
    for model in plan.models:
        where = "not here"
        if model.folder is not None:
            where = f"found: {model.folder}"
        elif model.problem is not None:
            where = "refused"
        elif plan.machine.model_hub:
            about = f", about {size(model.download_bytes)}" if model.download_bytes else ""
            where = f"to download{about}"
        yield f"model of the {model.role}", model.path, f"{where}; its shape: {model.shape_source}"
    for tasks in plan.tasks:
        yield f"tasks.{tasks.role}", tasks.path, tasks.problem or f"found: {tasks.num_tasks} tasks"


def _work(plan: Plan) -> Iterator[Row]:
    recipe, training = plan.recipe, plan.recipe.training
    responses = training.groups_per_step * recipe.rollout.group_size
    yield "steps", f"{training.steps:,}", _pretraining(recipe)
    yield (
        "tokens of a step, at most",
        f"{_tokens_per_step(recipe):,}",
        f"groups_per_step {training.groups_per_step} x group_size {recipe.rollout.group_size} x "
        f"max_tokens {recipe.rollout.sampling.max_tokens}; {training.updates_per_batch} updates",
    )
    yield "groups in flight, at most", f"{recipe.groups_in_flight:,}", groups_in_words(recipe)
    yield (
        "responses in flight",
        f"{responses_in_flight(recipe):,}",
        f"x group_size {recipe.rollout.group_size}",
    )
    lag = training.max_staleness
    yield "staleness", f"0 to {lag} steps" if lag else "0 steps", _staleness(recipe)
    for check in recipe.reward.checks_of_a_judge:
        yield (
            f"calls of {check.label} a step",
            f"{responses * check.samples:,}",
            "at most; of a judge (WEIR_JUDGE_URL of the graders) whose context holds a prompt, "
            f"its solution, a response and max_tokens {check.max_tokens:,}",
        )
    yield (
        "Redis, at worst",
        size(plan.redis_bytes),
        worst_case_in_words(recipe, plan.num_held_out) + _uncounted(plan),
    )


def _uncounted(plan: Plan) -> str:
    evaluated = evaluation_responses(plan.recipe, plan.num_held_out)
    missing = plan.recipe.evaluation is not None and not evaluated
    return "; evaluation is not counted: its file is missing" if missing else ""


def _pretraining(recipe: Recipe) -> str:
    steps = recipe.num_pretrain_steps
    return f"after {steps} of the critic alone" if steps else ""


def _staleness(recipe: Recipe) -> str:
    lag = recipe.training.max_staleness
    if not lag:
        return "on-policy: step s trains on samples of version s"
    return f"step s trains on samples of versions max(0, s - max_staleness {lag}) to s"


def _learner(plan: Plan) -> Iterator[Row]:
    learner = plan.learner
    assert learner is not None, "only with a footprint is there a section"
    yield from _rows(learner.held)
    yield "held all the time", size(total(learner.held)), ""
    yield from _rows(learner.backward)
    yield from _rows(learner.step)
    yield (
        "peak",
        size(learner.peak),
        f"held + max(backward {size(total(learner.backward))}, optimizer's step "
        f"{size(total(learner.step))})"
        + ("" if plan.machine.on_cpus else f"; usable: {size(plan.machine.learner_bytes)}"),
    )


def _rollout(plan: Plan) -> Iterator[Row]:
    rollout = plan.rollout
    assert rollout is not None, "only with a footprint is there a section"
    yield from _rows((rollout.weights, rollout.cache))
    cache, share = plan.machine.engine_cache_bytes, plan.machine.share_of(plan.machine.engine)
    set_aside = f"at most {size(cache)} (WEIR_ROLLOUT_KV_CACHE_MIB), or what the weights leave"
    yield (
        "room for keys and values",
        size(rollout.room),
        set_aside if cache else f"{share:.0%} of the GPU, less the weights",
    )
    yield (
        "responses at full length",
        f"{rollout.responses_held} of {rollout.responses_asked}",
        "at once in an engine; the others wait, or share as long as they are short",
    )


def _rows(items: Sequence[Item]) -> list[Row]:
    return [(item.what, size(item.bytes), item.formula) for item in items]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
