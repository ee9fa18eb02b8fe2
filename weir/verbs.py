"""The verbs of ``weir``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import protocol
import typer
from protocol.profiles import histogram, profile_path
from protocol.recipe import Recipe, load_recipe
from protocol.recipe_files import RecipeError
from protocol.tasks import TaskFileError, read_tasks
from rich.console import Console, Group
from typer.main import get_command

from services.chassis.command import BAD_INPUT, INTERRUPTED
from services.chassis.deployment import Reader, home_dir
from services.chassis.secret_variables import all_variables
from services.chassis.security import access_rows, allowance_rows
from weir import chat as chats
from weir import suite as suites
from weir import views
from weir.client import WeirClient, WeirError
from weir.mcp import run_server
from weir.names import find_job, find_model
from weir.profile import add_pass_rates, measure, read_tasks_with_ids, write_lines
from weir.serving import serve_command
from weir.stack import NoStack, connected, find_stack, model_name
from weir.trackers import BadTarget, StartedJobs, Target
from weir.trackers import track as track_jobs
from weir.views import cell, complain, print_json, say, show, table

Job = dict[str, Any]
SUCCEEDED = 0
FAILED = 1
_SAMPLES_PER_PAGE = 1000
_GROUP_KEY = re.compile(r"(train|eval):")
_TRACKERS = "tensorboard:DIR, wandb:PROJECT, mlflow:URI, mlflow:EXPERIMENT, trackio:PROJECT"
# A client imports no service, so each of these replaces the process.
OF_OTHER_SERVICES = {
    "plan": ("services.learner.plan", "Show the files, memory and time that a recipe takes."),
    "sft": (
        "services.learner.sft.__main__",
        "Fine-tune a model on the solutions of a task file, before a job.",
    ),
    "grade": (
        "services.grader.offline.__main__",
        "Grade responses, or measure graders on labelled ones.",
    ),
    "data": (
        "services.data.__main__",
        "Import tasks from a dataset; check, profile or rewrite task files.",
    ),
    "replay": ("services.learner.replay", "Grade a step again, and show the effect of a recipe."),
    "compose": ("deploy.compose", "Write the docker-compose file for a machine's GPUs."),
}
_PASS_THROUGH = dict(
    ignore_unknown_options=True, allow_extra_args=True, allow_interspersed_args=False
)
verbs = typer.Typer(
    rich_markup_mode=None,
    epilog="Exit status: 0 done, 1 the job failed or was cancelled, 2 wrong input or no gateway, "
    "130 Ctrl-C, 141 the reader of the output has gone.",
)

_JOB = "Id, its beginning, or name. Default: the running job, else the newest."
AnyModel: TypeAlias = Annotated[str | None, typer.Argument(metavar="JOB[@STEP]", help=_JOB)]
JobId: TypeAlias = Annotated[str | None, typer.Argument(metavar="JOB", help=_JOB)]
OptionalJobId: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="JOB", help="Id, its beginning, or name.")
]
RecipeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="RECIPE")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Status: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="STATUS", help="With this status; may be repeated.")
]
Name: TypeAlias = Annotated[str | None, typer.Option(help="Of the recipe.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="The model that the job starts from.")]
Find: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="In the id, name, model or a label.")
]
Limit: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="At most this many.")]


def main(arguments: Sequence[str]) -> int:
    command = get_command(verbs)
    try:
        return command(list(arguments), prog_name="weir", standalone_mode=False) or 0
    except typer.TyperException as error:
        message = error.format_message()
        stop = "" if message.endswith((".", "?")) else "."
        complain(f"{message}{stop} `weir --help` and `weir VERB --help` say more.")
    except (RecipeError, TaskFileError, NoStack, WeirError, BadTarget) as error:
        complain(error)
    return BAD_INPUT


@verbs.command()
def run(recipe: RecipeFile, as_json: AsJson = False) -> int:
    """Submit the job of a recipe and follow it; Ctrl-C leaves the job running."""
    checked = _load_recipe(recipe)
    stack = find_stack()
    model = model_name(stack, checked.model.path)
    with connected(stack) as weir:
        return _submit(weir, lambda: weir.submit_recipe(checked, model=model), as_json)


@verbs.command()
def fork(
    job: JobId = None,
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Default: the job's.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Of the checkpoint. Default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Submit a job that starts from a checkpoint of another, and follow it."""
    if recipe is None and job is not None and job.endswith(".toml"):
        recipe = Path(job)
        job = None
    checked = _load_recipe(recipe) if recipe else None
    with connected() as weir:
        job_id = find_job(weir, job)
        model = _find_checkpoint(weir, job_id, step)
        if checked is None:
            return _submit(weir, lambda: weir.submit_again(job_id, model=model), as_json)
        return _submit(weir, lambda: weir.submit_recipe(checked, model=model), as_json)


@verbs.command()
def watch(job: JobId = None, as_json: AsJson = False) -> int:
    """Follow a job until it ends; Ctrl-C leaves it running."""
    with connected() as weir:
        followed = weir.job(find_job(weir, job))
        if not as_json:
            _say_fault(followed)
        return _follow(weir, followed, as_json)


@verbs.command("jobs")
def list_jobs(
    status: Status = None,
    name: Name = None,
    model: Model = None,
    find: Find = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connected() as weir:
        jobs = weir.jobs(limit, **_drop_unset(status=status, name=name, model=model, find=find))
        if as_json:
            print_json(jobs)
            return
        rows = table("job", "name", "status", "step", "left", "model")
        for job in jobs:
            details = job["weir"]
            name = details["recipe"]["name"]
            step = views.step_text(details["step"], details["steps"])
            row = (job["id"], name, job["status"], step, _remaining(job), job["model"])
            rows.add_row(*map(cell, row))
        show(rows)
        for job in jobs:
            _say_fault(job)


def _remaining(job: Job) -> str:
    place = job["weir"].get("place")
    if place:
        return f"{place}. in the queue"
    finish = job.get("estimated_finish")
    return "" if finish is None else views.duration(max(0.0, finish - time.time()))


@verbs.command()
def why(job: JobId = None, as_json: AsJson = False) -> None:
    """Show why a job waits, and the activity of each process."""
    with connected() as weir:
        job_id = find_job(weir, job)
        reasons = weir.why(job_id)
        if as_json:
            print_json([reasons])
            return
        say(views.job_summary(weir.job(job_id), reasons))
        for rows in views.process_tables(reasons):
            show(rows)


@verbs.command()
def doctor(
    job: JobId = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    security: Annotated[bool, typer.Option(help="Show access rights instead.")] = False,
    box: Annotated[bool, typer.Option("--box", help="Check this machine instead.")] = False,
) -> int:
    """Compare the log-probs of rollouts with the learner's, for each weights version.

    With --security: show the requests of each role, and the rights that variables give to clients.
    With --box: show the needs of a stack on GPUs; the status is 1 if this machine lacks one.

    The exit status is 0 if all rollouts at the newest version and the last sampled tokens agree; 1
    if one does not, or nothing was compared yet.
    """
    if box:
        _exec("deploy.preflight")
    if security:
        for rows in (access_rows(), allowance_rows(Reader(os.environ))):
            show(views.plain_table(rows))
        return SUCCEEDED
    with connected() as weir:
        job_id = find_job(weir, job)
        rows = views.find_parity(weir.past_events(job_id))
        newest = views.newest_parity(rows)
        if as_json:
            print_json(rows)
        else:
            show(views.parity_table(rows[-limit:]) if rows else "nothing was compared yet")
            say(views.job_summary(weir.job(job_id), weir.why(job_id)))
        all_agree = all(row["agrees"] for row in newest)
        return SUCCEEDED if newest and all_agree else FAILED


@verbs.command()
def pause(job: JobId = None, as_json: AsJson = False) -> None:
    """Pause a job after it has written a checkpoint."""
    with connected() as weir:
        _print_job(weir.pause(find_job(weir, job)), as_json)


@verbs.command()
def resume(
    job: JobId = None,
    budget: Annotated[
        float | None, typer.Option(metavar="HOURS", help="GPU-hours, instead of the job's budget.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a paused or failed job."""
    with connected() as weir:
        _print_job(weir.resume(find_job(weir, job), budget), as_json)


def _add_job_verb(
    verb: str,
    text: str,
    change_job: Callable[[WeirClient, str], Job],
    change_jobs: Callable[..., Iterable[Job]],
) -> None:
    @verbs.command(verb, help=text)
    def change(
        job: OptionalJobId = None,
        status: Status = None,
        name: Name = None,
        model: Model = None,
        find: Find = None,
        as_json: AsJson = False,
    ) -> None:
        query = _drop_unset(status=status, name=name, model=model, find=find)
        if (job is None) != bool(query):
            raise typer.BadParameter("give either a JOB or options that select jobs")
        with connected() as weir:
            if job is not None:
                _print_job(change_job(weir, find_job(weir, job)), as_json)
                return
            for changed in change_jobs(weir, **query):
                _print_job(changed, as_json)


_CANCEL = "Cancel a job, or every job that the options select."
_DELETE = "Delete an ended job with its model, or every ended job that the options select."
_add_job_verb("cancel", _CANCEL, WeirClient.cancel, WeirClient.cancel_all)
_add_job_verb("delete", _DELETE, WeirClient.delete, WeirClient.delete_all)


@verbs.command()
def evaluations(job: JobId = None, as_json: AsJson = False) -> None:
    """Show a job's results on held-out tasks."""
    with connected() as weir:
        job_id = find_job(weir, job)
        results = views.find_evaluations(weir.past_events(job_id))
        if as_json:
            print_json(results)
        elif not results:
            say(f"{job_id} has no evaluation yet; [evaluation] in a recipe requests them")
        else:
            show(views.evaluations_table(results))
            _say_gain([result for result in results if "name" not in result])


def _say_gain(results: Sequence[views.Json]) -> None:
    gain = views.gain_line(results)
    if gain:
        say(gain)


@verbs.command()
def evaluate(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="A folder, a job, or JOB@STEP.")
    ],
    suite: Annotated[
        str, typer.Option(metavar="SUITE", help="A TOML file, or a name such as math.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the results, as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Measure models on a suite, a job for each, and compare them with the first."""
    tables = suites.load_suite(suite)
    stack = find_stack()
    with connected(stack) as weir:
        names = [suites.resolve_model(weir, stack, model) for model in models]
        body = suites.build_body(weir, tables)
        jobs = [weir.submit({**body, "model": name}) for name in names]
        results: list[views.Json] = []
        for model, job in zip(models, jobs, strict=True):
            if not as_json:
                _print_job(job, as_json=False, details=f": {tables['name']} of {model}")
            status = _await_end(weir, job) if as_json else _follow(weir, job, as_json)
            if status == INTERRUPTED:
                return status
            evaluations = views.find_evaluations(weir.past_events(job["id"]))
            results += suites.label_results(model, job, evaluations)
        states = [weir.job(job["id"])["status"] for job in jobs]
    report = suites.report(tables, results)
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json([report])
    elif results:
        show(views.evaluations_table(results))
        if report["differences"]:
            show(views.differences_table(report["differences"]))
    return SUCCEEDED if set(states) == {"succeeded"} else FAILED


def _await_end(weir: WeirClient, job: Job) -> int:
    for _ in weir.events(job["id"]):
        pass
    return SUCCEEDED


@verbs.command()
def samples(
    job: JobId = None,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="One group in full, such as train:17.")
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N")] = None,
    correct: Annotated[bool | None, typer.Option("--correct/--wrong")] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="In the response, in any case.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show a job's responses and their scores."""
    if key is None and job is not None and _GROUP_KEY.match(job):
        job, key = None, job
    with connected() as weir:
        job_id = find_job(weir, job)
        if key is not None:
            group = weir.sample_group(job_id, key.partition("/")[0])
            if as_json:
                print_json([group])
            else:
                show(Group(*views.group_view(group)))
            return
        query = _drop_unset(step=step, correct=correct, text=text)
        pages = weir.samples(job_id, limit=min(limit, _SAMPLES_PER_PAGE), **query)
        rows = list(islice(pages, limit))
        if as_json:
            print_json(rows)
        elif rows:
            show(views.samples_table(rows))
        else:
            say(f"{job_id} has no such sample")


@verbs.command()
def chat(
    model: AnyModel = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", min=0)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of an answer. Default: what fits.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N")] = None,
) -> None:
    """Chat with the model of a job, or another model; a pipe asks one question."""
    sampling = _drop_unset(temperature=temperature, max_tokens=max_tokens, seed=seed)
    messages = [{"role": "system", "content": system}] if system else []
    with connected() as weir:
        # A job may have the name of a model.
        is_model = model is not None and weir.has_model(model)
        name = model if is_model else find_model(weir, model)
        body = {"model": name, **sampling}
        conversation = chats.Conversation(weir, body, messages)
        if sys.stdin.isatty():
            chats.talk(conversation)
        else:
            chats.answer_once(conversation)


@verbs.command()
def serve(model: AnyModel = None) -> None:
    """Show the command by which vLLM serves a job's model; starts nothing."""
    with connected() as weir:
        print(serve_command(weir, find_model(weir, model)))  # to be copied: never wrapped


@verbs.command()
def fetch(
    model: Annotated[str, typer.Argument(metavar="[JOB[@STEP]]", help=_JOB)],
    folder: Annotated[Path | None, typer.Argument(metavar="DIR")] = None,
) -> int:
    """Download the model of a job."""
    is_job = model.startswith("ftjob-") or "@" in model
    if folder is None and is_job:
        raise typer.BadParameter(f"name a DIR for the model of {model}")
    try:
        with connected() as weir, views.download_bar(Console()) as on_progress:
            name = find_model(weir, model if folder else None)
            folder = folder or Path(model)
            weir.fetch_model(name, folder, on_progress)
    except KeyboardInterrupt:
        say("\nthe received part stays; the same command resumes the download")
        return INTERRUPTED
    say(f"the model of {name} is in {folder.resolve()}")
    return 0


@verbs.command()
def track(
    to: Annotated[list[str], typer.Option(metavar="TRACKER:WHERE", help=_TRACKERS)],
    job: JobId = None,
    all_jobs: Annotated[
        bool, typer.Option("--all", help="Every job, including later ones.")
    ] = False,
) -> int:
    """Export the metrics of jobs to experiment trackers."""
    if job is not None and all_jobs:
        raise typer.BadParameter("give either a JOB or --all")
    targets = [Target.parse(text) for text in to]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with connected() as weir:
            job_id = None if all_jobs else find_job(weir, job)
            find = StartedJobs(weir) if job_id is None else lambda: [weir.job(job_id)]
            # A wrong name or address fails before `track_jobs`, which would wait.
            find()
            track_jobs(weir, targets, find, until_all_ended=not all_jobs)
    except KeyboardInterrupt:
        say("\nthe written events stay; the same command continues from there")
        return INTERRUPTED
    say(f"{job_id} has ended; all its events are in {', '.join(to)}")
    return 0


@verbs.command()
def up(
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the cluster's head, such as auto.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="In the background.")] = False,
) -> None:
    """Start the stack on this machine, or on a Ray cluster."""
    if ray is not None:
        if detach:
            raise typer.BadParameter("--detach is for a stack of this machine, not with --ray")
        _exec("deploy.ray_cluster", ray)
    _exec("deploy.local", "up", *["--detach"] * detach)


@verbs.command()
def down() -> None:
    """Stop the stack that was started here."""
    _exec("deploy.local", "down")


@verbs.command()
def logs(
    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="Such as learner. Default: the supervisor.")
    ] = "supervisor",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1)] = 100,
) -> None:
    """Show the log of a service of the stack that was started here."""
    folder = home_dir(os.environ).absolute() / "logs"
    names = sorted(path.stem for path in folder.glob("*.log"))
    chosen = [name for name in names if name == service or name.startswith(f"{service}-")]
    if not chosen:
        listed = ", ".join(names) or "none; `weir up` starts a stack here"
        raise typer.BadParameter(
            f"{folder} has no log of {service} (that of the supervisor is made by `weir up "
            f"--detach`); it has: {listed}"
        )
    paths = [str(folder / f"{name}.log") for name in chosen]
    os.execvp("tail", ["tail", "-n", str(lines), *["-F"] * follow, "--", *paths])


profiles = typer.Typer(rich_markup_mode=None, add_completion=False)


@profiles.command()
def profile(
    tasks: Annotated[Path, typer.Argument(metavar="FILE", help="A task file.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="A folder, a job, or JOB@STEP.")],
    samples: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Responses a task.")] = 8,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="With the prompt, sampling and reward to use."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="OUT", help="The tasks, with metadata.pass_rate.")
    ] = None,
) -> int:
    """Measure how often a model solves each task, by jobs of a stack.

    The results are in FILE's `.profile.jsonl`. If repeated, it finds its jobs and continues.
    """
    lines = read_tasks_with_ids(tasks)
    try:
        measured = list(measure(lines, model, samples, recipe))
    except KeyboardInterrupt:
        say("\nits jobs continue; the same command waits for them again")
        return INTERRUPTED
    write_lines(profile_path(tasks), map(vars, measured))
    for line in histogram(measured):
        say(line)
    say(f"{len(measured):,} of {len(lines):,} tasks in {profile_path(tasks)}")
    if output is not None:
        write_lines(output, add_pass_rates(lines, measured))
    return SUCCEEDED


def _add_service_verb(name: str, module: str, text: str) -> None:
    @verbs.command(name, help=text, add_help_option=False, context_settings=_PASS_THROUGH)
    def verb(context: typer.Context) -> int:
        if [name, *context.args[:1]] == ["data", "profile"]:
            run_profile = get_command(profiles)
            return run_profile(
                context.args[1:], prog_name="weir data profile", standalone_mode=False
            )
        _exec(module, *context.args)


for name, (module, text) in OF_OTHER_SERVICES.items():
    _add_service_verb(name, module, text)


def _exec(module: str, *arguments: str) -> NoReturn:
    command = (sys.executable, "-m", "services.chassis.command", module, *arguments)
    os.execve(sys.executable, command, all_variables())


@verbs.command()
def mcp() -> None:
    """Serve tools to a coding agent over standard input and output, by MCP."""
    run_server()


@verbs.command()
def version() -> None:
    """Show the version."""
    say(f"weir {protocol.__version__}")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        version()
        raise typer.Exit


@verbs.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Train a model to reason."""


def _drop_unset(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, "", [])}


def _print_job(job: Job, as_json: bool, details: str = "") -> None:
    if as_json:
        print_json([job])
    else:
        say(f"{job['id']} is {job.get('status', 'deleted')}{details}")


def _load_recipe(path: Path) -> Recipe:
    """Load a recipe, and check its task files."""
    recipe = load_recipe(path.absolute())
    for field, name in recipe.task_fields.items():
        tasks = Path(name).absolute()
        try:
            read_tasks(tasks)
        except TaskFileError as error:
            # An OSError already names the file.
            is_named = isinstance(error.__cause__, OSError)
            where = f"{field}: " + f"{tasks}: " * (not is_named)
            raise TaskFileError([where + problem for problem in error.problems]) from error
    return recipe


def _find_checkpoint(weir: WeirClient, job_id: str, step: int | None) -> str:
    """Return the model name of a job's checkpoint."""
    checkpoints = weir.checkpoints(job_id)
    for checkpoint in checkpoints:
        if step in {None, checkpoint["step_number"]}:
            return checkpoint["fine_tuned_model_checkpoint"]
    steps = ", ".join(str(checkpoint["step_number"]) for checkpoint in checkpoints) or "none"
    raise WeirError(f"{job_id} has no such checkpoint; the steps of its checkpoints: {steps}")


def _submit(weir: WeirClient, submit: Callable[[], Job], as_json: bool) -> int:
    try:
        job = submit()
    except KeyboardInterrupt:
        complain("interrupted before a response; `weir jobs` shows whether the job was submitted")
        return INTERRUPTED
    details = job["weir"]
    _print_job(job, as_json, f": {details['recipe']['name']}, {details['steps']} steps")
    return _follow(weir, job, as_json)


def _follow(weir: WeirClient, job: Job, as_json: bool) -> int:
    """Show a job's events until it ends or Ctrl-C, and return the exit status."""
    job_id = job["id"]
    events = weir.events(job_id)
    try:
        if as_json:
            print_json(events)
        else:
            details = job["weir"]
            progress = views.Progress(job_id, steps=details["steps"], step=details["step"])

            why = partial(_find_reason, weir, job_id)
            forecast = partial(_find_forecast, weir, job_id)
            views.show_progress(progress, events, Console(), why, forecast)
            _say_gain(progress.evaluations)
        job = weir.job(job_id)
    except KeyboardInterrupt:
        if not as_json:
            say(
                f"\n{job_id} continues; `weir watch {job_id}` follows it, `weir cancel {job_id}` "
                "ends it"
            )
        return INTERRUPTED
    has_succeeded = job["status"] == "succeeded"
    if as_json:
        print_json([job])
    elif has_succeeded:
        _say_result(job)
    else:
        reason = f": {job['error']['message']}" if job["error"] else ""
        complain(f"{job_id} {job['status']}{reason}")
    return SUCCEEDED if has_succeeded else FAILED


def _say_result(job: Job) -> None:
    result = job["weir"]["result"]
    if job["weir"]["steps"] == 0:
        say(f"{job['id']} succeeded")
        return
    say(f"{job['id']} succeeded: {result.get('model') or 'no model was written'}")
    num_unreadable = job["weir"].get("unreadable_answers")
    if num_unreadable:
        say(f"{num_unreadable} of its tasks were left out: graders cannot read their answers")
    share = result.get("unworkable")
    if share:
        say(f"{share:.1%} of its groups were left out: no worker can sample from their prompts")
    if result.get("model"):
        job_id = job["id"]
        say(f"next: weir chat {job_id} | weir evaluations {job_id} | weir fetch {job_id} DIR")


def _find_reason(weir: WeirClient, job_id: str) -> str | None:
    """Return why a job waits; None if it has ended or the gateway is silent, as events report."""
    try:
        reasons = weir.why(job_id)
        return None if reasons.get("ended") else reasons.get("because")
    except (WeirError, RuntimeError):  # a closed client raises RuntimeError
        return None


def _find_forecast(weir: WeirClient, job_id: str) -> views.Json | None:
    """Return a job's forecast; None if it has none or the gateway is silent."""
    try:
        return weir.job(job_id)["weir"].get("forecast")
    except WeirError:
        return None


def _say_fault(job: Job) -> None:
    fault = job["weir"].get("waiting_for")
    if fault:
        say(f"{job['id']} is {job['status']} and waits for this to be mended: {fault}")
