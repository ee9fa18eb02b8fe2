"""The verbs of ``weir``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import protocol
import typer
from protocol.recipe import Recipe, RecipeError, load_recipe
from protocol.tasks import TaskFileError, read_tasks
from rich.console import Console, Group
from typer.main import get_command

from services.chassis.command import BAD_INPUT, INTERRUPTED
from services.chassis.deployment import Reader
from services.chassis.secret_variables import all_variables
from services.chassis.security import access_rows, allowance_rows
from weir import chat as chats
from weir import views
from weir.client import WeirClient, WeirError
from weir.serving import how_to_serve
from weir.stack import NoStack, connected, find_stack, model_for
from weir.trackers import BadTarget, BegunJobs, Target
from weir.trackers import track as track_jobs
from weir.views import cell, complain, say, show, table, tell

Job = dict[str, Any]
SUCCEEDED, FAILED = 0, 1
_AFTER_CTRL_C = "`weir watch {0}` follows it, `weir cancel {0}` ends it"
_PAGE = 1000  # samples
_TRACKERS = "tensorboard:DIR, wandb:PROJECT, mlflow:URI, mlflow:EXPERIMENT, trackio:PROJECT"
# Each becomes a process of its own, since a client imports no service.
OF_OTHER_SERVICES = {
    "plan": ("services.learner.plan", "Show the files, memory and time that a recipe takes."),
    "sft": (
        "services.learner.sft.__main__",
        "Have a model learn the solutions of a task file, before a job.",
    ),
    "grade": (
        "services.grader.offline.__main__",
        "Grade responses, or measure graders by labelled ones.",
    ),
    "data": ("services.data.__main__", "Import tasks from a dataset; check or rewrite task files."),
    "replay": ("services.learner.replay", "Grade a step again, and show what a recipe changes."),
    "compose": ("deploy.compose", "Write what a machine's GPUs add to docker-compose.yml."),
}
_AS_THEY_ARE = dict(
    ignore_unknown_options=True, allow_extra_args=True, allow_interspersed_args=False
)
verbs = typer.Typer(
    rich_markup_mode=None,
    epilog="Exit status: 0 done, 1 the job failed or was cancelled, 2 wrong input or no gateway, "
    "130 Ctrl-C, 141 nobody reads the output.",
)

AnyModel: TypeAlias = Annotated[str, typer.Argument(metavar="JOB[@STEP]")]
JobId: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
OneJob: TypeAlias = Annotated[str | None, typer.Argument(metavar="JOB")]
RecipeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="RECIPE")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Status: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="STATUS", help="With this status; may be repeated.")
]
Name: TypeAlias = Annotated[str | None, typer.Option(help="Of the recipe.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="From which the job starts.")]
Find: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="In the id, name, model or a label.")
]
Limit: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]


def main(arguments: Sequence[str]) -> int:
    try:
        return get_command(verbs)(list(arguments), prog_name="weir", standalone_mode=False) or 0
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
    wanted = _checked(recipe)
    stack = find_stack()
    model = model_for(stack, wanted.model.path)
    with connected(stack) as weir:
        return _submit(weir, lambda: weir.submit_recipe(wanted, model=model), as_json)


@verbs.command()
def fork(
    job_id: JobId,
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Else that of the job.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Of the checkpoint; else the newest.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Submit a job that starts from a checkpoint of another, and follow it."""
    wanted = _checked(recipe) if recipe else None
    with connected() as weir:
        model = _checkpoint(weir, job_id, step)
        if wanted is None:
            return _submit(weir, lambda: weir.submit_again(job_id, model=model), as_json)
        return _submit(weir, lambda: weir.submit_recipe(wanted, model=model), as_json)


@verbs.command()
def watch(job_id: JobId, as_json: AsJson = False) -> int:
    """Follow a job until it ends; Ctrl-C leaves it running."""
    with connected() as weir:
        job = weir.job(job_id)
        if not as_json:
            _say_what_it_waits_for(job)
        return _follow(weir, job, as_json)


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
        jobs = weir.jobs(limit, **_given(status=status, name=name, model=model, find=find))
        if as_json:
            tell(jobs)
            return
        rows = table("job", "name", "status", "step", "left", "model")
        for job in jobs:
            own = job["weir"]
            named = (job["id"], own["recipe"]["name"], job["status"])
            steps, finish = views.of_steps(own["step"], own["steps"]), job.get("estimated_finish")
            left = "" if finish is None else views.duration(max(0.0, finish - time.time()))
            if place := own.get("place"):
                left = f"{place}. in the queue"
            rows.add_row(*map(cell, (*named, steps, left, job["model"])))
        show(rows)
        for job in jobs:
            _say_what_it_waits_for(job)


@verbs.command()
def why(job_id: JobId, as_json: AsJson = False) -> None:
    """Say what a job waits for, and who does what."""
    with connected() as weir:
        job, reasons = weir.job(job_id), weir.why(job_id)
        if as_json:
            tell([reasons])
            return
        say(views.in_a_sentence(job, reasons))
        for rows in views.tables(reasons):
            show(rows)


@verbs.command()
def doctor(
    job_id: OneJob = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    security: Annotated[bool, typer.Option(help="Show who may do what instead.")] = False,
) -> int:
    """Show whether rollouts compute what the learner computes, version by version.

    With --security: who may make which request, and what the variables set here let clients do.

    The exit status is 0 if all rollouts agree that reported the newest version, and the last
    sampled tokens do; 1 if one does not, or nothing was compared yet.
    """
    if security:
        for rows in (access_rows(), allowance_rows(Reader(os.environ))):
            show(views.plain_table(rows))
        return SUCCEEDED
    if job_id is None:
        raise typer.BadParameter("give a JOB, or --security")
    with connected() as weir:
        rows = views.parity_in(weir.past_events(job_id))
        newest = views.newest_parity(rows)
        if as_json:
            tell(rows)
        else:
            show(views.parity_table(rows[-limit:]) if rows else "nothing was compared yet")
            say(views.in_a_sentence(weir.job(job_id), weir.why(job_id)))
        return SUCCEEDED if newest and all(row["agrees"] for row in newest) else FAILED


@verbs.command()
def pause(job_id: JobId, as_json: AsJson = False) -> None:
    """Have a job write a checkpoint and rest."""
    with connected() as weir:
        _tell_or_say(weir.pause(job_id), as_json)


@verbs.command()
def resume(job_id: JobId, as_json: AsJson = False) -> None:
    """Have a job go on that rests or has failed."""
    with connected() as weir:
        _tell_or_say(weir.resume(job_id), as_json)


def _add_for_some(
    verb: str,
    text: str,
    one: Callable[[WeirClient, str], Job],
    some: Callable[..., Iterable[Job]],
) -> None:
    @verbs.command(verb, help=text)
    def ask(
        job_id: OneJob = None,
        status: Status = None,
        name: Name = None,
        model: Model = None,
        find: Find = None,
        as_json: AsJson = False,
    ) -> None:
        query = _given(status=status, name=name, model=model, find=find)
        if (job_id is None) != bool(query):
            raise typer.BadParameter("say which JOB, or by options which jobs")
        with connected() as weir:
            for job in some(weir, **query) if job_id is None else [one(weir, job_id)]:
                _tell_or_say(job, as_json)


_ENDS = "End a job, or every job that the options name."
_DELETES = "Delete all of a job that has ended, its model as well, or of all that the options name."
_add_for_some("cancel", _ENDS, WeirClient.cancel, WeirClient.cancel_all)
_add_for_some("delete", _DELETES, WeirClient.delete, WeirClient.delete_all)


@verbs.command()
def evaluations(job_id: JobId, as_json: AsJson = False) -> None:
    """Show how a job did on held-out tasks."""
    with connected() as weir:
        results = views.evaluations_in(weir.past_events(job_id))
        if as_json:
            tell(results)
        elif not results:
            say(f"{job_id} has no evaluation yet; its recipe asks for them in [evaluation]")
        else:
            show(views.evaluations_table(results))
            if gain := views.gain_line([result for result in results if "name" not in result]):
                say(gain)


@verbs.command()
def samples(
    job_id: JobId,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="One group in full, such as train:17.")
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N")] = None,
    correct: Annotated[bool | None, typer.Option("--correct/--wrong")] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Which the response holds, in any case.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show what a job's model wrote, and how it was judged."""
    query = {"step": step, "correct": correct, "text": text}
    with connected() as weir:
        if key is not None:
            found = [weir.sample_group(job_id, key.partition("/")[0])]
        else:
            given = {name: value for name, value in query.items() if value is not None}
            found = list(islice(weir.samples(job_id, limit=min(limit, _PAGE), **given), limit))
        if as_json:
            tell(found)
        elif key is not None:
            Console().print(Group(*views.group_view(found[0])))
        elif found:
            show(views.samples_table(found))
        else:
            say(f"{job_id} has no such sample")


@verbs.command()
def chat(
    model: AnyModel,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", min=0)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of an answer; else what fits.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N")] = None,
) -> None:
    """Talk to what a job has learned, or to a model by its name; a pipe asks one question."""
    sampling = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    settings = {name: value for name, value in sampling.items() if value is not None}
    begins_with = [{"role": "system", "content": system}] if system else []
    with connected() as weir:
        conversation = chats.Conversation(weir, {"model": model, **settings}, begins_with)
        (chats.talk if sys.stdin.isatty() else chats.answer_once)(conversation)


@verbs.command()
def serve(name: AnyModel) -> None:
    """Show the command by which vLLM serves a job's model elsewhere; it starts nothing."""
    with connected() as weir:
        say(how_to_serve(weir, name))


@verbs.command()
def fetch(job_id: AnyModel, folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> int:
    """Bring the model that a job has trained to this machine."""
    try:
        with connected() as weir, views.download_bar(Console()) as on_progress:
            weir.fetch_model(job_id, folder, on_progress)
    except KeyboardInterrupt:
        say("\nwhat has arrived stays; the same command goes on from it")
        return INTERRUPTED
    say(f"the model of {job_id} is in {folder.resolve()}")
    return 0


@verbs.command()
def track(
    to: Annotated[list[str], typer.Option(metavar="TRACKER:WHERE", help=_TRACKERS)],
    job_id: OneJob = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every job, those to come among them.")
    ] = False,
) -> int:
    """Write what jobs tell to experiment trackers."""
    if (job_id is None) != every:
        raise typer.BadParameter("say which JOB, or --all")
    targets = [Target.parse(text) for text in to]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with connected() as weir:
            find = BegunJobs(weir) if job_id is None else lambda: [weir.job(job_id)]
            find()  # a wrong name or a wrong address is told at once
            track_jobs(weir, targets, find, until_all_ended=not every)
    except KeyboardInterrupt:
        say("\nwhat is written stays; the same command goes on from it")
        return INTERRUPTED
    say(f"{job_id} has ended; all that it told is in {', '.join(to)}")
    return 0


@verbs.command()
def up(
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the cluster's head, such as auto.")
    ] = None,
) -> None:
    """Start the stack on this machine, or on a Ray cluster."""
    if ray is not None:
        _become("deploy.ray_cluster", ray)
    _become("deploy.local", "up")


@verbs.command()
def down() -> None:
    """Stop the stack that was started here."""
    _become("deploy.local", "down")


def _add(name: str, module: str, text: str) -> None:
    @verbs.command(name, help=text, add_help_option=False, context_settings=_AS_THEY_ARE)
    def verb(context: typer.Context) -> None:
        _become(module, *context.args)


for name, (module, text) in OF_OTHER_SERVICES.items():
    _add(name, module, text)


def _become(module: str, *arguments: str) -> NoReturn:
    command = (sys.executable, "-m", "services.chassis.command", module, *arguments)
    os.execve(sys.executable, command, all_variables())


@verbs.command()
def version() -> None:
    """Show the version."""
    say(f"weir {protocol.__version__}")


def _version_alone(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@verbs.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version_alone, help="Show the version.")
    ] = False,
) -> None:
    """Train a model to reason."""


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}


def _tell_or_say(job: Job, as_json: bool, more: str = "") -> None:
    if as_json:
        tell([job])
    else:
        say(f"{job['id']} is {job.get('status', 'deleted')}{more}")


def _checked(path: Path) -> Recipe:
    """The recipe of a file, if it and its task files are sound."""
    recipe = load_recipe(path.absolute())
    for name in recipe.task_files:
        tasks = Path(name).absolute()
        try:
            read_tasks(tasks)
        except TaskFileError as error:
            if isinstance(error.__cause__, OSError):  # which names the file
                raise
            raise TaskFileError([f"{tasks}: {problem}" for problem in error.problems]) from error
    return recipe


def _checkpoint(weir: WeirClient, job_id: str, step: int | None) -> str:
    """How the gateway names a job's checkpoint, as a model."""
    kept = weir.checkpoints(job_id)
    found = [each for each in kept if step in {None, each["step_number"]}]
    if not found:
        steps = ", ".join(str(each["step_number"]) for each in kept) or "none"
        raise WeirError(f"{job_id} has no such checkpoint; the steps of those it has kept: {steps}")
    return found[0]["fine_tuned_model_checkpoint"]


def _submit(weir: WeirClient, submit: Callable[[], Job], as_json: bool) -> int:
    try:
        job = submit()
    except KeyboardInterrupt:
        complain("interrupted before an answer came; `weir jobs` says if there is a job now")
        return INTERRUPTED
    own = job["weir"]
    _tell_or_say(job, as_json, f": {own['recipe']['name']}, {own['steps']} steps")
    return _follow(weir, job, as_json)


def _follow(weir: WeirClient, job: Job, as_json: bool) -> int:
    """Show a job's events until it ends or the person has seen enough."""
    job_id, own = job["id"], job["weir"]
    events = weir.events(job_id)
    try:
        if as_json:
            tell(events)
        else:
            progress = views.Progress(job_id, steps=own["steps"], step=own["step"])
            views.show_progress(progress, events, Console(), lambda: _reason(weir, job_id))
            if gain := views.gain_line(progress.evaluations):
                say(gain)
        job = weir.job(job_id)
    except KeyboardInterrupt:
        if not as_json:
            say(f"\n{job_id} goes on; " + _AFTER_CTRL_C.format(job_id))
        return INTERRUPTED
    if as_json:
        tell([job])
    elif job["status"] == "succeeded":
        result = job["weir"]["result"]
        say(f"{job_id} succeeded: {result.get('model') or 'no model was written'}")
        for remark in _remarks(job["weir"]):
            say(remark)
    else:
        reason = f": {job['error']['message']}" if job["error"] else ""
        complain(f"{job_id} {job['status']}{reason}")
    return SUCCEEDED if job["status"] == "succeeded" else FAILED


def _remarks(own: Job) -> Iterator[str]:
    if count := own.get("unreadable_answers"):
        yield f"{count} of its tasks were left out: graders cannot read their answers"
    if share := own["result"].get("unworkable"):
        yield f"{share:.1%} of its groups were left out: no worker can sample from their prompts"


def _reason(weir: WeirClient, job_id: str) -> str | None:
    """What a job waits for; None while the gateway is away, as the events will tell."""
    try:
        return weir.why(job_id).get("because")
    except (WeirError, RuntimeError):  # the latter of a client that is closed
        return None


def _say_what_it_waits_for(job: Job) -> None:
    if waiting_for := job["weir"].get("waiting_for"):
        say(f"{job['id']} is {job['status']} and waits for this to be mended: {waiting_for}")
