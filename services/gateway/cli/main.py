"""The ``weir`` command: a stack on this machine, and jobs on any stack.

Exit status: 0 the job succeeded (or the command did its work), 1 it failed or was cancelled, 2 the
input was wrong or no gateway answered, 130 Ctrl-C, which leaves the job running.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from protocol.recipe import Recipe, RecipeError, load_recipe
from protocol.tasks import TaskFileError, read_tasks
from rich.console import Console
from rich.table import Table

from services.gateway.cli.evaluations import Result, evaluations_in, evaluations_table, gain_line
from services.gateway.cli.progress import LiveView, Progress, download_bar
from services.gateway.client.client import WeirClient, WeirError
from services.gateway.client.stack import NoStack, find_stack, model_for
from services.gateway.samples.view import group_view, samples_table
from services.gateway.tracking.follow import BadTarget, Target, begun_jobs, track
from services.gateway.watch.view import in_a_sentence, tables

_OF_OTHER_SERVICES = {
    "plan": ("services.learner.plan", "show what a recipe takes to run"),
    "grade": ("services.grader.offline", "grade responses, or measure graders by labelled ones"),
    "data": ("services.grader.data", "check task files, and rewrite their answers as integers"),
    "replay": ("services.learner.replay", "grade a step again, and show what a recipe changes"),
    "compose": ("deploy.compose", "write what a machine's GPUs add to docker-compose.yml"),
}
_PAGE = 1000  # samples
_WHOLE = 10_000  # columns: a narrow terminal wraps lines, and nothing is cut
_TRACKERS = "tensorboard:DIR, wandb:PROJECT, mlflow:URI, mlflow:EXPERIMENT, trackio:PROJECT"
Job = dict[str, Any]
SUCCEEDED, FAILED, BAD_INPUT, DETACHED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in _OF_OTHER_SERVICES:
        _become(_OF_OTHER_SERVICES[words[0]][0], words[1:])
    given = _parser().parse_args(words)
    try:
        return given.run(given)
    except (RecipeError, TaskFileError, NoStack, WeirError, BadTarget) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir", description="Train a model to reason.")
    verbs = parser.add_subparsers(required=True, metavar="VERB [ARGUMENT]")

    def add(name: str, run: Any, text: str, argument: str | None = None) -> Any:
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(run=run, verb=name)
        if argument is not None:
            verb.add_argument("name", metavar=argument)
        return verb

    up = add("up", _up, "start the stack on this machine, or on a Ray cluster")
    up.add_argument("--ray", metavar="ADDRESS", help="of the cluster's head, such as auto")
    add("down", _down, "stop the stack that was started here")
    add("run", _run, "submit the job of a recipe and follow it", "RECIPE")
    add("watch", _watch, "follow a job", "JOB")
    add("jobs", _jobs, "list jobs, newest first")
    add("why", _why, "say what a job waits for, and who does what", "JOB")
    add("evaluations", _evaluations, "show how a job did on held-out tasks", "JOB")
    _add_samples(add)
    fetch = add("fetch", _fetch, "bring the model that a job has trained to this machine", "JOB")
    fetch.add_argument("folder", metavar="DIR", type=Path)
    add("pause", _asking(WeirClient.pause), "have a job write a checkpoint and rest", "JOB")
    add("resume", _asking(WeirClient.resume), "have a job go on that rests or has failed", "JOB")
    add("cancel", _asking(WeirClient.cancel), "end a job", "JOB")
    _add_track(add)
    for name, (_, text) in _OF_OTHER_SERVICES.items():
        verbs.add_parser(name, help=text)
    return parser


def _add_track(add: Callable[..., argparse.ArgumentParser]) -> None:
    verb = add("track", _track, "write what jobs tell to experiment trackers")
    which = verb.add_mutually_exclusive_group(required=True)
    which.add_argument("name", metavar="JOB", nargs="?")
    which.add_argument("--all", action="store_true", help="every job, those to come among them")
    verb.add_argument("--to", nargs="+", required=True, metavar="TRACKER:WHERE", help=_TRACKERS)


def _add_samples(add: Callable[..., argparse.ArgumentParser]) -> None:
    verb = add("samples", _samples, "show what a job's model wrote, and how it was judged", "JOB")
    verb.add_argument("key", metavar="KEY", nargs="?", help="one group in full, such as train:17")
    verb.add_argument("--step", type=int, metavar="N")
    either = verb.add_mutually_exclusive_group()
    either.add_argument("--wrong", dest="correct", action="store_false", default=None)
    either.add_argument("--correct", dest="correct", action="store_true", default=None)
    verb.add_argument("--text", metavar="TEXT", help="which the response holds, in any case")
    verb.add_argument("--limit", type=int, metavar="N", default=20, help="at most so many (20)")
    verb.add_argument("--json", action="store_true", help="one JSON object per line")


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become another command, since the gateway imports no other service."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _up(given: argparse.Namespace) -> NoReturn:
    """Become the command that owns the stack, so that it gets Ctrl-C itself."""
    if given.ray is not None:
        _become("deploy.ray_cluster", [given.ray])
    _become("deploy.local", ["up"])


def _down(_: argparse.Namespace) -> NoReturn:
    _become("deploy.local", ["down"])


def _run(given: argparse.Namespace) -> int:
    recipe = load_recipe(Path(given.name))
    _check_tasks(recipe)
    stack = find_stack()
    with WeirClient(stack.url, stack.api_key) as weir:
        job = weir.submit_recipe(recipe, model=model_for(stack, recipe.model.path))
        print(f"{job['id']} is {job['status']}: {recipe.name}, {recipe.training.steps} steps")
        return _follow(weir, job)


def _watch(given: argparse.Namespace) -> int:
    with _client() as weir:
        job = weir.job(given.name)
        _say_what_it_waits_for(job)
        return _follow(weir, job)


def _jobs(_: argparse.Namespace) -> int:
    table = Table("job", "name", "status", "step", "model", box=None, pad_edge=False)
    with _client() as weir:
        jobs = weir.jobs()
        for job in jobs:
            own = job["weir"]
            steps = f"{own['step']}/{own['steps']}"
            table.add_row(job["id"], own["recipe"]["name"], job["status"], steps, job["model"])
    Console(width=_WHOLE).print(table)
    for job in jobs:
        _say_what_it_waits_for(job)
    return SUCCEEDED


def _why(given: argparse.Namespace) -> int:
    with _client() as weir:
        job, why = weir.job(given.name), weir.why(given.name)
    print(in_a_sentence(job, why))
    for table in tables(why):
        Console(width=_WHOLE).print(table)
    return SUCCEEDED


def _evaluations(given: argparse.Namespace) -> int:
    with _client() as weir:
        results = evaluations_in(weir.past_events(given.name))
    if not results:
        print(f"{given.name} has no evaluation yet; its recipe asks for them in [evaluation]")
        return SUCCEEDED
    Console(width=_WHOLE).print(evaluations_table(results))
    _show_gain(results)
    return SUCCEEDED


def _samples(given: argparse.Namespace) -> int:
    with _client() as weir:
        if given.key is not None:
            found = [weir.sample_group(given.name, given.key.partition("/")[0])]
        else:
            names = ("step", "correct", "text")
            query = {name: value for name in names if (value := getattr(given, name)) is not None}
            pages = weir.samples(given.name, limit=min(given.limit, _PAGE), **query)
            found = list(islice(pages, max(1, given.limit)))
    if given.json:
        for sample in found:
            print(json.dumps(sample))
    elif given.key is not None:
        Console().print(group_view(found[0]))
    elif found:
        Console(width=_WHOLE).print(samples_table(found))
    else:
        print(f"{given.name} has no such sample")
    return SUCCEEDED


def _fetch(given: argparse.Namespace) -> int:
    try:
        with _client() as weir, download_bar(Console()) as on_progress:
            weir.fetch_model(given.name, given.folder, on_progress)
    except KeyboardInterrupt:
        print("\nwhat has arrived stays; the same command goes on from it")
        return DETACHED
    print(f"the model of {given.name} is in {given.folder}")
    return SUCCEEDED


def _track(given: argparse.Namespace) -> int:
    targets = [Target.parse(text) for text in given.to]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _client() as weir:
            find = (lambda: begun_jobs(weir)) if given.all else (lambda: [weir.job(given.name)])
            list(find())  # a wrong name or a wrong address is told at once
            track(weir, targets, find, until_all_ended=not given.all)
    except KeyboardInterrupt:
        print("\nwhat is written stays; the same command goes on from it")
        return DETACHED
    print(f"{given.name} has ended; all that it told is in {', '.join(given.to)}")
    return SUCCEEDED


def _asking(ask: Callable[[WeirClient, str], Job]) -> Callable[[argparse.Namespace], int]:
    def run(given: argparse.Namespace) -> int:
        with _client() as weir:
            job = ask(weir, given.name)
        print(f"{job['id']} is {job['status']}")
        return SUCCEEDED

    return run


def _client() -> WeirClient:
    stack = find_stack()
    return WeirClient(stack.url, stack.api_key)


def _check_tasks(recipe: Recipe) -> None:
    for name in filter(None, (recipe.tasks.train, recipe.tasks.held_out)):
        try:
            read_tasks(Path(name))
        except TaskFileError as error:
            raise TaskFileError([f"{name}: {problem}" for problem in error.problems]) from error


def _follow(weir: WeirClient, job: Job) -> int:
    """Show a job's events until it ends or the person has seen enough."""
    job_id = job["id"]
    progress = Progress(job_id, steps=job["weir"]["steps"], step=job["weir"]["step"])
    try:
        with LiveView(progress, Console()) as view:
            for event in weir.events(job_id):
                view.show(event)
        _show_gain(progress.evaluations)
        return _last_word(weir.job(job_id))
    except KeyboardInterrupt:
        print(
            f"\n{job_id} goes on; `weir watch {job_id}` follows it, `weir cancel {job_id}` ends it"
        )
        return DETACHED


def _say_what_it_waits_for(job: Job) -> None:
    if waiting_for := job["weir"].get("waiting_for"):
        print(f"{job['id']} is {job['status']} and waits for this to be mended: {waiting_for}")


def _show_gain(evaluations: Sequence[Result]) -> None:
    if gain := gain_line(evaluations):
        print(gain)


def _last_word(job: Job) -> int:
    if job["status"] == "succeeded":
        print(
            f"{job['id']} succeeded: {job['weir']['result'].get('model') or 'no model was written'}"
        )
        return SUCCEEDED
    reason = f": {job['error']['message']}" if job["error"] else ""
    print(f"{job['id']} {job['status']}{reason}", file=sys.stderr)
    return FAILED
