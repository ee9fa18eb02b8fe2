"""What an attempt starts from and works with, and how it takes up what earlier ones have left."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from protocol.messages import JobRecord, Task
from protocol.placement import parse
from protocol.recipe import Purpose, Recipe
from protocol.tasks import TaskFileError, read_tasks

from services.chassis.deployment import Deployment
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.learner.attempt import Attempt, MachineFault
from services.learner.durable.checkpoint import Checkpoints, remove_leftovers
from services.learner.durable.progress import Progress
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore, remove_old
from services.learner.durable.uploads import check_upload
from services.learner.formulas import check_formulas
from services.learner.job.control import Control
from services.learner.job.learning import Learning, Phase
from services.learner.job.parity import Parity
from services.learner.job.phases.evaluation import Evaluation
from services.learner.job.phases.pretraining import Pretraining
from services.learner.job.phases.session import PROBED, Session
from services.learner.job.phases.training import Training
from services.learner.job.reconciler import Reconciler
from services.learner.job.references import readable_tasks
from services.learner.job.versions import Versions
from services.learner.model_source import find_model
from services.learner.planning.footprint import fit_to_cpus, limit_micro_batches
from services.learner.planning.machine import LocalMachine, Options, resolve_machine
from services.learner.supply.evaluator import Evaluator, HeldOut
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.training.batching import largest_micro_batches
from services.learner.training.flops import Flops
from services.learner.training.model_check import (
    check_sequence,
    check_split,
    check_targets,
    check_vocabulary,
)
from services.learner.training.ranks import Team
from services.learner.training.scoring import Scoring
from services.learner.training.trial import try_models

log = logging.getLogger(__name__)


@dataclass
class Assembly:
    """What one attempt works with; the first phase that is due comes next."""

    learning: Learning
    phases: Sequence[Phase]
    feeders: Sequence[Feeder]


async def prepare(
    service: Service,
    team: Team,
    prompts: PromptRenderer,
    control: Control,
    attempt: Attempt,
    record: JobRecord,
) -> Assembly:
    """Load the models and the tasks, restore the last checkpoint, replay the log after it.

    ``record`` is the job's as it was before the attempt.
    """
    recipe, deployment = attempt.recipe, service.deployment
    for name in (".", "checkpoints", "samplers", "states"):
        await asyncio.to_thread(remove_leftovers, attempt.folder / name, attempt.number)
    await asyncio.to_thread(remove_old, deployment)
    check_formulas(recipe)
    tasks = await asyncio.to_thread(_tasks_of, recipe, deployment.files_dir)
    policy, critic = await asyncio.to_thread(_checked_models, recipe, deployment)
    for warning in await asyncio.to_thread(try_models, policy, critic, recipe.model.max_context):
        await attempt.say(f"trial:{warning}", warning, level="warn")
    tasks = await readable_tasks(attempt, record, deployment.files_dir, tasks)
    await prompts.open(policy)
    team.num_ids = await _ids_in_use(prompts, policy, critic)
    size, num_ranks = recipe.training.sequence_parallel, team.num_ranks
    await asyncio.to_thread(check_sequence, size, (policy, critic), num_ranks)
    checkpoints = Checkpoints(attempt.folder / "checkpoints", attempt.number)
    newest = await _newest_checkpoint(checkpoints, record, num_ranks, attempt)
    progress = newest[1] if newest else Progress()
    progress.made_before = record.step
    flops = Flops.from_models(recipe, policy, critic, num_ranks, team.device_name)
    tools = (prompts, control, checkpoints, tasks, flops)
    assembly, evaluator = _assemble(service, team, attempt, progress, *tools)
    versions = assembly.learning.versions
    # Before models load, which takes long: of a template without an end people hear soon.
    await versions.parity.choose(prompts, tasks[0] or PROBED)
    fitting = await _fit_to_memory(recipe, record, attempt, None if team.device_name else flops)
    await team.open(policy, fitting, critic)
    await team.rehearse(largest_micro_batches(fitting, num_ranks))
    if newest is not None:
        await team.load(newest[0])
    await versions.restore(newest[0].name if newest else "")
    await asyncio.to_thread(versions.store.keep_origin, policy, recipe)
    await _replay(assembly, evaluator)
    return assembly


async def _fit_to_memory(
    recipe: Recipe, record: JobRecord, attempt: Attempt, on_cpus: Flops | None
) -> Recipe:
    """The recipe with micro-batches that fit: as the record says, or on CPUs as the memory allows.

    Later attempts split a batch in the same way, so the record then has what was decided.
    """
    if record.micro_batch_tokens or on_cpus is None or on_cpus.policy is None:
        return limit_micro_batches(recipe, record.micro_batch_tokens)
    here = LocalMachine(host_bytes=psutil.virtual_memory().total)
    machine = resolve_machine(Options(), None, os.environ, here)
    fitting = fit_to_cpus(recipe, on_cpus.policy, on_cpus.critic, machine)
    if fitting != recipe:
        most = fitting.training.micro_batch_tokens
        await attempt.update(micro_batch_tokens=most)
        message = f"micro-batches have at most {most} tokens: more do not fit into the memory"
        await attempt.say("fitted", message, level="warn")
    return fitting


async def _ids_in_use(prompts: PromptRenderer, policy: Path, critic: Path | None) -> int:
    """How many ids a tokenizer and a policy have in common; the critic must know them all."""
    own = await prompts.describe()
    if critic is not None and critic == policy:
        check_vocabulary(policy, critic, own, own)
    elif critic is not None:
        async with PromptRenderer(workers=1) as others_prompts:
            await others_prompts.open(critic)
            check_vocabulary(policy, critic, own, await others_prompts.describe())
    return own.max_id + 1


async def _replay(assembly: Assembly, evaluator: Evaluator) -> None:
    """Take up what earlier attempts have logged since the checkpoint, and asked for."""
    learning, attempt = assembly.learning, assembly.learning.attempt
    progress, positions = learning.progress, learning.progress.positions
    logged = await asyncio.to_thread(learning.intake.replay, progress.first_segment, positions)
    step = progress.step if progress.evaluating is None else progress.evaluating
    await evaluator.withdraw_others(learning.intake, step)
    there = learning.intake.keys_waiting() | await attempt.exchange.under_way(attempt.job_id)
    for feeder in assembly.feeders:
        feeder.resume(positions[feeder.purpose], there)
    evaluator.next_number = positions[Purpose.EVAL]
    log.info("restored", extra={"step": progress.step, "logged_groups": logged})


def _tasks_of(recipe: Recipe, files: Path) -> tuple[tuple[Task, ...], HeldOut]:
    """The tasks to train on, and those that are held out, as many as each evaluation takes."""
    if recipe.client is not None:
        return (), {}
    train = _read_tasks(files / f"{recipe.tasks.train}.jsonl")
    held_out = {
        name: _read_tasks(files / f"{recipe.held_out_files[name]}.jsonl")[: evaluation.tasks]
        for name, evaluation in recipe.evaluations.items()
    }
    return train, held_out


def _read_tasks(path: Path) -> tuple[Task, ...]:
    check_upload(path)
    try:
        return read_tasks(path)
    except TaskFileError as error:
        if isinstance(error.__cause__, OSError):  # then its content is not to blame
            raise error.__cause__ from None
        raise


def _checked_models(recipe: Recipe, deployment: Deployment) -> tuple[Path, Path | None]:
    """Where the policy and the critic start from; the stack can train them, and sample from one."""
    roots = (*deployment.model_roots, deployment.jobs_dir.resolve())
    policy = critic = find_model(recipe.model.path, roots, hub=deployment.model_hub)
    if recipe.critic is None:
        critic = None
    elif recipe.critic.path is not None:
        critic = find_model(
            recipe.critic.path, roots, hub=deployment.model_hub, field="critic.path"
        )
    check_targets(policy, recipe.model.lora)
    line = os.environ.get("WEIR_GPUS")
    check_split(policy, parse(line) if line else None)
    return policy, critic


async def _newest_checkpoint(
    checkpoints: Checkpoints, record: JobRecord, num_ranks: int, attempt: Attempt
) -> tuple[Path, Progress] | None:
    """The newest whole one; people hear of newer ones that are damaged.

    Raises:
        MachineFault: if there must be one and there is none.
    """
    newest = await asyncio.to_thread(checkpoints.newest)
    if newest is None:
        # The second one is begun when the first is whole.
        if record.step > 2 * record.recipe.training.checkpoint_every:
            raise MachineFault(
                f"{checkpoints.folder} has no checkpoint, though {record.step} "
                "steps were made; mount or restore that folder, or cancel the job"
            )
        return None
    folder, state = newest
    for damaged, how in checkpoints.damaged.items():
        message = f"the checkpoint {damaged} is damaged, {how}; it goes on from {folder}"
        await attempt.say(f"damaged:{damaged.name}", message, level="warn")
    if state.ranks != num_ranks:
        message = f"a checkpoint of {state.ranks} ranks goes on with {num_ranks}"
        await attempt.say(f"ranks:{attempt.number}", message)
    return newest


def _assemble(
    service: Service,
    team: Team,
    attempt: Attempt,
    progress: Progress,
    prompts: PromptRenderer,
    control: Control,
    checkpoints: Checkpoints,
    tasks: tuple[Sequence[Task], HeldOut],
    flops: Flops,
) -> tuple[Assembly, Evaluator]:
    """Put together what an attempt works with; ``tasks`` are to train on, and held out."""
    train, held_out = tasks
    deployment = service.deployment
    intake = Intake(attempt)
    store = SampleStore(attempt.folder / "samples", attempt.number, deployment)
    publisher = Publisher(attempt, *deployment.weights_roots, by_delta=deployment.weights_by_delta)
    feeders = {
        purpose: Feeder(attempt, train, purpose, partial(intake.has, purpose))
        for purpose in (Purpose.TRAIN, Purpose.PRETRAIN)
    }
    evaluator = Evaluator(attempt, held_out)
    parity = Parity(attempt, progress, control)
    publisher.probes_of = parity.of
    learning = Learning(
        attempt=attempt,
        progress=progress,
        team=team,
        control=control,
        prompts=prompts,
        intake=intake,
        reconciler=Reconciler(attempt, {**feeders, Purpose.EVAL: evaluator}, intake, publisher),
        versions=Versions(
            *(attempt, progress, team, control, intake, store, publisher, checkpoints, parity)
        ),
        scoring=Scoring.of(attempt.recipe),
    )
    if attempt.recipe.client is not None:
        return Assembly(learning, (Session(learning),), ()), evaluator
    phases = (
        Evaluation(learning, evaluator),
        Pretraining(learning, feeders[Purpose.PRETRAIN]),
        Training(learning, feeders[Purpose.TRAIN], flops),
    )
    return Assembly(learning, phases, tuple(feeders.values())), evaluator
