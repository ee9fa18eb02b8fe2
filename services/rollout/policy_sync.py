"""Keep the engine at the newest weights that the learner has announced."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from protocol import weights
from protocol.calls import Served
from protocol.messages import ActiveJob, Doing, ParityReport, PolicyVersion, Probes
from protocol.operations import PROBES
from protocol.recipe import Model
from protocol.streams import NEW_POLICY
from protocol.weights import WeightsError, WeightsGone

from services.chassis.faults import Busy, StartupFailed, Unworkable
from services.chassis.metrics import DEVICES, start_at_zero
from services.chassis.parity import compare_logprobs
from services.chassis.service import Service
from services.chassis.turns import Turns
from services.rollout import engine_errors
from services.rollout.demand import Demand, Request
from services.rollout.fetching import Fetcher, ModelShape, read_shape, verified_shape
from services.rollout.samples import (
    EngineDied,
    EngineError,
    IncompatibleEngine,
    LoadError,
    ParityError,
    version_label,
)
from services.rollout.settings import EngineSettings
from services.rollout.start_limit import limit_start

if TYPE_CHECKING:
    from services.rollout.engine import Engine

StartEngine = Callable[[Path, str, EngineSettings, Path | None], Awaitable["Engine"]]
log = logging.getLogger(__name__)

POLICY_VERSION = Gauge("weir_policy_version", "The version that this engine samples from")
SYNC_SECONDS = Histogram(
    "weir_weight_sync_seconds",
    "How long a weight sync took, by phase; requests wait from 'pause' to 'resume'",
    ["phase"],
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
SYNCS = Counter("weir_weight_syncs_total", "Weight syncs that succeeded")
SYNC_FAILURES = start_at_zero(
    Counter("weir_weight_sync_failures_total", "Weight syncs that failed", ["why"]),
    *("gone", "damaged", "load", "parity"),
)

# The interval during an evaluation, whose requests change the target.
_POLL_S = 0.05
# vLLM has no event for the death of an engine that is idle.
_WATCH_S = 0.2
# Newer weights are announced before older ones are removed.
_GONE_RETRY_S = 0.3
_RETRY_S = 1.0
_MAX_LOAD_FAILURES = 3
# Policies of the same weights may differ in these fields.
_MUTABLE_FIELDS = {"evaluated", "links", "probes"}


@dataclass(frozen=True)
class Serving:
    """The weights in the engine, and the settings that it was started with."""

    policy: PolicyVersion
    shape: ModelShape
    settings: EngineSettings

    @property
    def label(self) -> str:
        return version_label(self.policy.attempt, self.policy.number)


def incompatibility(current: Serving, new: Serving) -> str | None:
    """Return why the running engine cannot load the new weights, or None if it can."""
    if new.settings != current.settings:
        return f"the settings {current.settings} became {new.settings}"
    if new.policy.base_digest != current.policy.base_digest:
        return "its adapter is for another model"
    return "; ".join(current.shape.differences(new.shape)) or None


def read_serving(served: Served, last: Serving | None = None) -> Serving:
    """Describe the weights of a folder as a policy version that follows ``last``.

    Raises:
        WeightsError: if the folder is sealed, and damaged.
        OSError: if there is no model in it.
    """
    folder = Path(served.folder)
    if (folder / weights.MANIFEST).exists():
        weights.verify(folder)
    rank = 0
    base_digest = served.base
    if served.base:
        rank = json.loads((folder / "adapter_config.json").read_bytes())["r"]
        if last is not None and last.policy.job_id == served.job_id:
            base_digest = last.policy.base_digest
    probes = folder / PROBES
    policy = PolicyVersion(
        job_id=served.job_id,
        attempt=served.attempt,
        number=served.version,
        folder=served.folder,
        digest="",
        base=served.base,
        base_digest=base_digest,
        probes=Probes.model_validate_json(probes.read_bytes()) if probes.exists() else None,
    )
    settings = replace(EngineSettings.from_environment(served.model), lora_rank=rank)
    return Serving(policy, read_shape(folder), settings)


class PolicyFollower:
    """Owns the engine and keeps it at the newest policy of the active job."""

    def __init__(self, service: Service, start_engine: StartEngine) -> None:
        self.service = service
        self.start_engine = start_engine
        self.engine: Engine | None = None
        # None while weights are loaded.
        self.serving: Serving | None = None
        # The active job when it was last read.
        self.active: ActiveJob | None = None
        # Without an active job the engine may serve a folder, or load one.
        self.served_folder: Served | None = None
        self.loading_folder: Served | None = None
        self.demand = Demand()
        self.turns: asyncio.Task[None] | None = None
        self._started_with: Serving | None = None
        self._last_job = ""
        self._load_failures = 0
        # The digest of the probes' prompts, if the engine's tokenizer makes the same.
        self._prompts_digest = ""
        # The version that failed its probes.
        self._refused: PolicyVersion | None = None
        self._changed = asyncio.Condition()
        # Locked while the engine starts, loads or sleeps.
        self._gpu = asyncio.Lock()
        # The engine's turn on the GPU ends when it sleeps, or with the process.
        self._turn = AsyncExitStack()
        self._fetcher = Fetcher(*service.deployment.weights_roots)

    def serves(self, job: ActiveJob) -> bool:
        """Whether a policy of this job is loaded, or was, and its successor is being loaded.

        False after a version failed its probes, until another version passes them.
        """
        return self._last_job == job.job_id and self._refused is None

    def has_died(self) -> bool:
        return self.engine is not None and self.engine.has_died

    @asynccontextmanager
    async def acquire_engine(self, request: Request) -> AsyncIterator[Engine]:
        """Yield the engine when it has a policy that may answer the request.

        The wait includes loads, and a learner's replay of its log. The lease on a request ends with
        its job.

        Raises:
            Busy: if it would wait for the end of an evaluation, and another rollout would not.
        """
        demand = self.demand
        with demand.hold(request):
            await self._wait_until(
                lambda: demand.may_begin(request) or demand.is_for_others(request)
            )
            if demand.is_for_others(request):
                raise Busy
            assert self.engine is not None
            with demand.sample(request):
                yield self.engine

    async def wait_for_probes(self) -> None:
        """Wait until the weights in the engine have passed their probes.

        Raises:
            Busy: if they have failed them.
        """
        await self._wait_until(lambda: self.serving is not None or self._refused)
        if self.serving is None:
            raise Busy

    async def _wait_until(self, condition: Callable[[], object]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def refresh_job(self) -> ActiveJob | None:
        """Read the active job. A client's session does not count: it announces no versions."""
        job = await self.service.exchange.active()
        self.active = job if job is not None and job.recipe.client is None else None
        return self.active

    @property
    def call_key(self) -> str:
        """The key of the calls that the engine answers now; empty while its weights change."""
        if self.active is None:
            return self.served_folder.key if self.served_folder is not None else ""
        job_id = self.active.job_id
        is_served = self.serving is not None and self.serving.policy.job_id == job_id
        return f"job:{job_id}" if is_served else ""

    def may_answer(self, key: str) -> bool:
        """Whether the engine answers calls of this key now, or after the load in progress."""
        if self.active is not None:
            return key.partition(":")[2] == self.active.job_id and self._refused is None
        if self.loading_folder is not None and key == self.loading_folder.key:
            return True
        return key == self.call_key

    async def serve(self, served: Served) -> None:
        """Load the weights of a folder, unless a job that announces versions is active.

        Raises:
            IncompatibleEngine: if they need another engine.
            StartupFailed: if vLLM cannot serve them.
            ParityError: if the engine fails their probes.
            EngineError: if they are not loaded.
            WeightsError: if the folder is damaged.
            OSError: if they cannot be read.
        """
        self.loading_folder = served
        last = self.serving or self._started_with
        try:
            serving = await asyncio.to_thread(read_serving, served, last)
            async with self._gpu:
                if await self.refresh_job() is None:
                    with self.service.activity.during(Doing.LOADS_MODEL, timed="loading"):
                        await self._load_folder(served, serving)
        finally:
            self.loading_folder = None

    async def _load_folder(self, served: Served, serving: Serving) -> None:
        folder = Path(served.folder)
        started = self._started_with
        if self.engine is None or started is None:
            await self._start(folder, serving, Path(served.base) if served.base else None)
        elif served.folder == started.policy.base:
            # The engine has the base model of its adapters.
            await self._load(None, serving, keep_kv=False)
        else:
            # Without a recipe the engine's settings stay.
            if not served.job_id and not started.settings.lora_rank:
                serving = replace(serving, settings=started.settings)
            await self._load(folder, serving, keep_kv=False)
        self.service.readiness.set(True)
        if not await self._passes_probes(serving.policy, served.model, {}):
            SYNC_FAILURES.labels("parity").inc()
            raise ParityError(self.service.activity.parity[-1])
        self.served_folder = served
        self._last_job = ""
        self._refused = None
        await self._notify()

    async def answering_engine(self, key: str) -> Engine:
        """Wait for the weights of a call's key, and return the engine."""
        await self._wait_until(lambda: self.call_key == key)
        assert self.engine is not None
        return self.engine

    async def follow_policy_forever(self) -> None:
        """Consumes the announcements of the active job; produces an engine at the newest one.

        Waits for: an active job, a policy that is not served yet. Unblocked by: the learner.

        Raises:
            IncompatibleEngine: if the policy needs another engine.
            StartupFailed: if no engine starts for the job, or it dies before it has served it.
            EngineError: if the engine has died, or fails to load three times.
        """
        while not self.service.stopping.is_set():
            if pause_s := await self._follow_once():
                await self.service.pause(pause_s)
            else:
                await self.service.await_event(self.service.exchange.wait_for_new(NEW_POLICY))

    async def watch_engine_forever(self) -> None:
        """Consumes nothing; produces an error when a process of the engine has ended.

        Waits for: the next poll. Unblocked by: time.

        Raises:
            EngineDied: if the engine has died, also while it is idle.
            StartupFailed: if it died before it served anything.
            LoadError: if it could not sleep or wake up.
        """
        while not await self.service.pause(_WATCH_S):
            if self.has_died():
                raise self._death_error(EngineDied(engine_errors.describe_death()))
            if self.turns is not None and self.turns.done():
                self.turns.result()

    def _death_error(self, error: EngineDied) -> EngineDied | StartupFailed:
        """Blame the job if the engine has not served anything yet."""
        if self._last_job or self._started_with is None:
            return error
        return StartupFailed(str(error), self._started_with.policy.job_id)

    async def take_turns_forever(self) -> None:
        """Consumes the learner's turns on the GPU; produces an engine that sleeps during them.

        Waits for: the learner to want the GPU, then to give it back. Unblocked by: the learner.
        """
        turns = Turns(self.service)
        asleep = ExitStack()
        if not turns.is_shared:
            return
        await self._gpu.acquire()
        while True:
            asleep.enter_context(self.service.activity.during(Doing.SLEEPS, timed="sleeping"))
            await self._turn.enter_async_context(turns.engine_turn())
            if self.engine is not None:
                await self.engine.wake_up()
            asleep.close()
            self._gpu.release()
            await turns.wait_until_wanted()
            await self._gpu.acquire()
            if self.engine is not None:
                await self.engine.sleep()
            await self._turn.aclose()

    def shut_down(self) -> None:
        self._fetcher.close()
        if self.engine is not None:
            self.engine.shut_down()

    async def _follow_once(self) -> float:
        """Load a newer policy if there is one; return the pause, 0 for until the next."""
        job = await self.refresh_job()
        newest = await self.service.exchange.newest_policy(job.job_id) if job else None
        if job is None or newest is None:
            if self.engine is None:
                self.service.readiness.set(False, "no policy has been announced")
            return 0
        self.demand.newest = newest
        self.demand.last_version = job.recipe.training.steps
        await self._notify()
        target = self.demand.target or newest
        if self._has_taken(target) or not self.demand.may_switch:
            return _POLL_S if newest.evaluated else 0
        return await self._try_policy(target, job)

    def _has_taken(self, policy: PolicyVersion) -> bool:
        """Whether these weights are served or refused."""
        current = self.serving.policy if self.serving else self._refused
        if current is None:
            return False
        fields = policy.model_dump(exclude=_MUTABLE_FIELDS)
        return current.model_dump(exclude=_MUTABLE_FIELDS) == fields

    async def _try_policy(self, policy: PolicyVersion, job: ActiveJob) -> float:
        folder = self.service.deployment.memory_dir / policy.folder
        during = self.service.activity.during
        loading = during(Doing.LOADS_VERSION, policy.number, timed="loading")
        try:
            with loading, ExitStack() as lease:
                # The base comes first: its damage must not count against the adapter's links.
                base = await asyncio.to_thread(lease.enter_context, self._leased_base(policy))
                started = time.monotonic()
                fetched = self._fetcher.fetched(policy)
                folder = await asyncio.to_thread(lease.enter_context, fetched)
                seconds = {"fetch": time.monotonic() - started}
                await self._take(folder, base, policy, job, seconds)
        except WeightsGone as error:
            return self._report_failure("gone", error, _GONE_RETRY_S)
        except (WeightsError, OSError) as error:
            return self._report_failure("damaged", error, _RETRY_S)
        except LoadError as error:
            # The folder may be removed while the engine reads it.
            if not folder.exists():
                return self._report_failure("gone", error, _POLL_S)
            self._load_failures += 1
            if self._load_failures >= _MAX_LOAD_FAILURES:
                raise
            return self._report_failure("load", error, _RETRY_S)
        return _POLL_S

    def _report_failure(self, reason: str, error: Exception, retry_s: float) -> float:
        SYNC_FAILURES.labels(reason).inc()
        log.warning("weights were not loaded", extra={"why": reason, "error": str(error)})
        if self.serving is None:
            self.service.readiness.set(False, f"weights {reason}: {error}")
        return retry_s

    @contextmanager
    def _leased_base(self, policy: PolicyVersion) -> Iterator[Path | None]:
        """Verify and yield an adapter's base model, on which an engine is to start."""
        if not policy.base or self.engine is not None:
            yield None
            return
        base = self.service.deployment.weights_dir / policy.base
        with weights.leased(base):
            weights.verify(base, policy.base_digest)
            yield base

    async def _take(
        self,
        folder: Path,
        base: Path | None,
        policy: PolicyVersion,
        job: ActiveJob,
        seconds: dict[str, float],
    ) -> None:
        settings = EngineSettings.from_environment(job.recipe.model)
        started = time.monotonic()
        shape = await asyncio.to_thread(verified_shape, folder, policy.digest)
        seconds["verify"] = time.monotonic() - started
        serving = Serving(policy, shape, settings)
        async with self._gpu:
            if self.engine is None:
                await self._start(folder, serving, base)
            else:
                keep_kv = job.recipe.rollout.kv_after_sync == "keep"
                seconds |= await self._load(folder, serving, keep_kv=keep_kv)
            # The engine may sample now; its samples wait for the probes.
            self.demand.serving = policy
            await self._notify()
            try:
                is_equal = await self._passes_probes(policy, job.recipe.model, seconds)
            except EngineDied as error:
                raise self._death_error(error) from error
        if is_equal:
            await self._serve(serving, seconds)
        else:
            await self._refuse(policy)

    async def _start(self, folder: Path, serving: Serving, base: Path | None) -> None:
        self.service.readiness.set(False, "the engine is starting")
        settings = serving.settings
        with self.service.activity.during(Doing.STARTS_ENGINE):
            try:
                async with limit_start(settings.start_timeout_s):
                    self.engine = await self.start_engine(folder, serving.label, settings, base)
            except EngineError as error:
                raise StartupFailed(str(error), serving.policy.job_id) from error
        self._started_with = serving
        DEVICES.set(settings.num_gpus)

    async def _load(
        self, folder: Path | None, serving: Serving, *, keep_kv: bool
    ) -> dict[str, float]:
        assert self.engine is not None
        assert self._started_with is not None
        reason = incompatibility(self._started_with, serving) if folder else None
        if reason is not None:
            raise IncompatibleEngine(f"the policy needs another engine, so this one ends: {reason}")
        # Requests wait until a load has succeeded.
        self.serving = self.demand.serving = None
        # Calls for the old folder end.
        self.served_folder = None
        return await self.engine.load(folder, serving.label, keep_kv=keep_kv)

    async def _passes_probes(
        self, policy: PolicyVersion, model: Model, seconds: dict[str, float]
    ) -> bool:
        """Score the probes, and report whether the engine agrees with the learner.

        The status carries the report to the learner, from now on in each heartbeat.
        """
        probes = policy.probes
        if probes is None:
            return True
        assert self.engine is not None
        logprobs = await self.engine.score(probes.token_ids, seconds)
        if self._prompts_digest != probes.rendered:
            try:
                self._prompts_digest = await self.engine.prompts.digest(
                    probes.tasks, model.prompt_template, model.chat_template_options
                )
            except Unworkable as error:
                log.error("prompts of the probes", extra={"why": str(error)})
                self._prompts_digest = ""
        report = ParityReport(
            job_id=policy.job_id,
            attempt=policy.attempt,
            version=policy.number,
            **compare_logprobs(logprobs, probes),
            rollout=self.service.display_name,
            most=probes.most,
            same_prompts=self._prompts_digest == probes.rendered,
        )
        self.service.activity.parity.append(report)
        return report.agrees

    async def _refuse(self, policy: PolicyVersion) -> None:
        """Stop sampling, and drop the samples of these weights."""
        self.serving = None
        self._refused = policy
        self.demand.serving = None
        await self._notify()
        SYNC_FAILURES.labels("parity").inc()
        reason = f"the engine does not answer as version {policy.number} of the policy"
        self.service.readiness.set(False, reason)
        log.error("weights are refused", extra={"policy": policy.folder})

    async def _serve(self, serving: Serving, seconds: dict[str, float]) -> None:
        self._load_failures = 0
        self.demand.set_load_time(sum(seconds.values()))
        for phase, duration in seconds.items():
            SYNC_SECONDS.labels(phase).observe(duration)
        SYNCS.inc()
        POLICY_VERSION.set(serving.policy.number)
        self.serving = serving
        self._last_job = serving.policy.job_id
        self._refused = None
        await self._notify()
        self.service.readiness.set(True)
        log.info("policy loaded", extra={"policy": serving.policy.folder, "seconds": seconds})
