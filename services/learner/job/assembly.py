"""Assembly: build the parts of an attempt, and continue the work of earlier attempts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import psutil
from protocol.messages import JobRecord, Task
from protocol.model_folder import is_adapter
from protocol.placement import MAX_GPU_SHARE, parse
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
from services.learner.job.references import Tasks, readable_tasks
from services.learner.job.versions import Versions
from services.learner.model_source import ModelNotFound, find_model
from services.learner.planning.footprint import (
    decide_recomputation,
    fit_to_cpus,
    learner_footprint,
    limit_micro_batches,
)
from services.learner.planning.machine import LocalMachine, Options, gpu_bytes, resolve_machine
from services.learner.supply.curriculum import Curriculum
from services.learner.supply.evaluator import Evaluator
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
from services.learner.training.stored_model import StoredModel
from services.learner.training.trial import try_models

log = logging.getLogger(__name__)


@dataclass
class Assembly:
    """The parts of one attempt; of its phases the first that is due comes next."""

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

    ``record`` is the job's record before the attempt.
    """
    recipe = attempt.recipe
    deployment = service.deployment
    for name in (".", "checkpoints", "samplers", "states"):
        await asyncio.to_thread(remove_leftovers, attempt.folder / name, attempt.number)
    await asyncio.to_thread(remove_old, deployment)
    check_formulas(recipe)
    tasks = await asyncio.to_thread(_read_job_tasks, recipe, deployment.files_dir)
    policy, critic = await asyncio.to_thread(_find_models, recipe, deployment)
    if recipe.only_evaluates:
        team = _stored_model(recipe, policy, deployment)
    else:
        await _try_models(attempt, policy, critic, team.num_ranks)
    num_ranks = team.num_ranks
    tasks = await readable_tasks(attempt, deployment.files_dir, tasks)
    checkpoints = Checkpoints(attempt.folder / "checkpoints", attempt.number)
    newest = await _newest_checkpoint(checkpoints, record, num_ranks, attempt)
    progress = newest[1] if newest else Progress()
    progress.steps_reported = record.step
    flops = Flops.from_models(recipe, policy, critic, num_ranks, team.device_name)
    assembly, evaluator = _assemble(
        service, team, attempt, progress, prompts, control, checkpoints, tasks, flops
    )
    versions = assembly.learning.versions
    if not recipe.only_evaluates:
        train = [*chain(*tasks[0].values())]
        await _load_models(assembly.learning, record, flops, policy, critic, train)
    if newest is not None:
        await team.load(newest[0])
    await versions.restore(newest[0].name if newest else "")
    await asyncio.to_thread(versions.store.write_origin, policy, recipe)
    await _replay(assembly, evaluator)
    return assembly


async def _load_models(
    learning: Learning,
    record: JobRecord,
    flops: Flops,
    policy: Path,
    critic: Path | None,
    tasks: Sequence[Task],
) -> None:
    team = learning.team
    prompts = learning.prompts
    # Do this before models load, so that a slow chat template fails soon.
    await prompts.open(policy)
    team.num_ids = await _count_ids(prompts, policy, critic)
    await learning.parity.choose_probes(prompts, tasks or PROBED)
    recipe = learning.recipe
    fitting = await _fit_to_memory(recipe, record, learning.attempt, flops, team.device_name)
    await team.open(policy, fitting, critic)
    await team.rehearse(largest_micro_batches(fitting, team.num_ranks))


async def _try_models(attempt: Attempt, policy: Path, critic: Path | None, num_ranks: int) -> None:
    """Check that the ranks can train the models; warn of doubts."""
    recipe = attempt.recipe
    for warning in await asyncio.to_thread(try_models, policy, critic, recipe.model.max_context):
        await attempt.warn(f"trial:{warning}", warning)
    await asyncio.to_thread(
        check_sequence, recipe.training.sequence_parallel, (policy, critic), num_ranks
    )


async def _fit_to_memory(
    recipe: Recipe, record: JobRecord, attempt: Attempt, flops: Flops, device: str
) -> Recipe:
    """Return the recipe with micro-batches that fit: the record's, or those of a CPU's memory.

    The record keeps them, so that later attempts split a batch in the same way. ``device`` is the
    name of the GPU; empty on CPUs.
    """
    limited = limit_micro_batches(recipe, record.micro_batch_tokens)
    fitting = _fit(limited, flops, device, has_shrunk=limited != recipe)
    if fitting.training.recompute_activations != recipe.training.recompute_activations:
        words = "are kept: they fit into the memory"
        if fitting.training.recompute_activations:
            words = "are recomputed: they do not fit into the memory"
        log.info(f"activations {words}", extra={"job": record.id})
    if record.micro_batch_tokens:
        return limit_micro_batches(fitting, record.micro_batch_tokens)
    max_tokens = fitting.training.micro_batch_tokens
    if max_tokens != recipe.training.micro_batch_tokens:
        await attempt.update(micro_batch_tokens=max_tokens)
        message = f"micro-batches have at most {max_tokens} tokens: more do not fit into the memory"
        await attempt.warn("fitted", message)
    return fitting


def _learner_share() -> float:
    """Return the part of a GPU that the engines on it leave to the learner."""
    line = os.environ.get("WEIR_GPUS")
    if not line:
        return MAX_GPU_SHARE
    placement = parse(line)
    gpus = [gpu for bundle in placement.learner for gpu in bundle.gpus]
    return min(map(placement.learner_share, gpus), default=MAX_GPU_SHARE)


def _fit(recipe: Recipe, flops: Flops, device: str, *, has_shrunk: bool) -> Recipe:
    """``has_shrunk``: memory has run out before, so the plan was too small."""
    policy = flops.policy
    if policy is None:
        return decide_recomputation(recipe, lambda _: not device)
    if device:
        usable_bytes = _learner_share() * gpu_bytes(device)

        def fits(recipe: Recipe) -> bool:
            footprint = learner_footprint(recipe, policy, flops.critic, flops.num_gpus)
            return not has_shrunk and footprint.peak <= usable_bytes

        return decide_recomputation(recipe, fits)
    memory = LocalMachine(host_bytes=psutil.virtual_memory().total)
    machine = resolve_machine(Options(), None, os.environ, memory)
    return fit_to_cpus(recipe, policy, flops.critic, machine)


async def _count_ids(prompts: PromptRenderer, policy: Path, critic: Path | None) -> int:
    """Return how many ids tokenizer and policy share; check that the critic has all of them."""
    vocabulary = await prompts.describe()
    if critic is not None and critic == policy:
        check_vocabulary(policy, critic, vocabulary, vocabulary)
    elif critic is not None:
        async with PromptRenderer(workers=1) as critic_prompts:
            await critic_prompts.open(critic)
            check_vocabulary(policy, critic, vocabulary, await critic_prompts.describe())
    return vocabulary.max_id + 1


async def _replay(assembly: Assembly, evaluator: Evaluator) -> None:
    """Continue with the groups that earlier attempts have logged or requested."""
    learning = assembly.learning
    attempt = learning.attempt
    progress = learning.progress
    positions = progress.positions
    logged = await asyncio.to_thread(learning.intake.replay, progress.first_segment, positions)
    step = progress.step if progress.evaluating is None else progress.evaluating
    await evaluator.withdraw_others(learning.intake, step)
    under_way = await attempt.exchange.pending_keys(attempt.job_id)
    open_keys = learning.intake.keys_waiting() | under_way
    for feeder in assembly.feeders:
        feeder.resume(positions[feeder.purpose], open_keys)
    evaluator.next_number = positions[Purpose.EVAL]
    log.info("restored", extra={"step": progress.step, "logged_groups": logged})


def _read_job_tasks(recipe: Recipe, files: Path) -> Tasks:
    """Read the training tasks, and as many held-out tasks as each evaluation takes."""
    if recipe.client is not None:
        return {}, {}
    train = {
        name: _read_tasks(files / f"{file}.jsonl")
        for name, file in recipe.tasks.train_files.items()
        if not recipe.only_evaluates
    }
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
        # An unreadable file is the machine's fault, not that of the file's content.
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise


def _find_models(recipe: Recipe, deployment: Deployment) -> tuple[Path, Path | None]:
    """Return the folders of policy and critic; check that the stack can train and split them."""
    roots = (*deployment.model_roots, deployment.jobs_dir.resolve())
    hub = deployment.model_hub
    policy = find_model(recipe.model.path, roots, hub=hub)
    critic: Path | None = None
    if recipe.critic is not None:
        critic = policy
        if recipe.critic.path is not None:
            critic = find_model(recipe.critic.path, roots, hub=hub, field="critic.path")
    check_targets(policy, recipe.model.lora)
    line = os.environ.get("WEIR_GPUS")
    check_split(policy, parse(line) if line else None)
    return policy, critic


def _stored_model(recipe: Recipe, policy: Path, deployment: Deployment) -> StoredModel:
    """Return the model that a job evaluates: the folder of the policy, or an adapter for it."""
    lora = recipe.model.lora
    if lora is None or lora.adapter is None:
        return StoredModel(policy, None)
    adapter = Path(lora.adapter).resolve()
    if not adapter.is_relative_to(deployment.jobs_dir.resolve()) or not is_adapter(adapter):
        raise ModelNotFound(f"model.lora.adapter: {lora.adapter} holds no adapter of a job")
    return StoredModel(adapter, policy)


async def _newest_checkpoint(
    checkpoints: Checkpoints, record: JobRecord, num_ranks: int, attempt: Attempt
) -> tuple[Path, Progress] | None:
    """Return the newest whole checkpoint; report newer ones that are damaged.

    Raises:
        MachineFault: if there must be one and there is none.
    """
    newest = await asyncio.to_thread(checkpoints.newest)
    if newest is None:
        # The second checkpoint begins once the first is whole.
        if record.step > 2 * record.recipe.training.checkpoint_every:
            raise MachineFault(
                f"{checkpoints.folder} has no checkpoint, but the job has made {record.step} "
                "steps; mount or restore that folder, or cancel the job"
            )
        return None
    folder, progress = newest
    for path, damage in checkpoints.damaged.items():
        message = f"the checkpoint {path} is damaged, {damage}; it continues from {folder}"
        await attempt.warn(f"damaged:{path.name}", message)
    if progress.ranks != num_ranks:
        message = f"a checkpoint of {progress.ranks} ranks continues with {num_ranks}"
        await attempt.report(f"ranks:{attempt.number}", message)
    return newest


def _assemble(
    service: Service,
    team: Team,
    attempt: Attempt,
    progress: Progress,
    prompts: PromptRenderer,
    control: Control,
    checkpoints: Checkpoints,
    tasks: Tasks,
    flops: Flops,
) -> tuple[Assembly, Evaluator]:
    train, held_out = tasks
    deployment = service.deployment
    intake = Intake(attempt)
    publisher = Publisher(attempt, *deployment.weights_roots, by_delta=deployment.weights_by_delta)
    curricula = {
        Purpose.TRAIN: Curriculum(attempt.recipe, train, progress.curriculum),
        Purpose.PRETRAIN: Curriculum(attempt.recipe, train, adapts=False),
    }
    feeders = {
        purpose: Feeder(attempt, curriculum, purpose, partial(intake.has, purpose))
        for purpose, curriculum in curricula.items()
    }
    evaluator = Evaluator(attempt, held_out)
    parity = Parity(attempt, progress, control)
    publisher.find_probes = parity.find_probes
    store = SampleStore(attempt.folder / "samples", attempt.number, deployment)
    versions = Versions(
        attempt, progress, team, control, intake, store, publisher, checkpoints, parity
    )
    learning = Learning(
        attempt=attempt,
        progress=progress,
        team=team,
        control=control,
        prompts=prompts,
        intake=intake,
        reconciler=Reconciler(attempt, {**feeders, Purpose.EVAL: evaluator}, intake, publisher),
        versions=versions,
        scoring=Scoring.of(attempt.recipe),
    )
    if attempt.recipe.client is not None:
        return Assembly(learning, (Session(learning),), ()), evaluator
    evaluation = Evaluation(learning, evaluator)
    if attempt.recipe.only_evaluates:
        return Assembly(learning, (evaluation,), ()), evaluator
    pretraining = Pretraining(learning, feeders[Purpose.PRETRAIN])
    training = Training(learning, feeders[Purpose.TRAIN], flops)
    phases = (evaluation, pretraining, training)
    return Assembly(learning, phases, tuple(feeders.values())), evaluator
