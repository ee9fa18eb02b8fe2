"""The engine follows the policy: it samples from the last weights that the learner announced."""

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
from protocol.weights import WeightsError, WeightsGone

from services.chassis.faults import Busy, StartupFailed, Unworkable
from services.chassis.metrics import DEVICES, start_at_zero
from services.chassis.parity import compare_logprobs
from services.chassis.service import Service
from services.chassis.turns import Turns
from services.rollout import last_words
from services.rollout.demand import Asked, Demand
from services.rollout.fetching import Fetcher, ModelShape, shape_of, verified_shape
from services.rollout.samples import (
    EngineDied,
    EngineError,
    EngineUnfit,
    LoadError,
    ParityError,
    version_label,
)
from services.rollout.settings import EngineSettings

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

_POLL_S = 0.05
_GONE_S = 0.3  # newer weights are announced before older ones go
_RETRY_S = 1.0
_MAX_LOAD_FAILURES = 3
_MAY_DIFFER = {"evaluated", "links", "probes"}  # in a policy of the same weights


@dataclass(frozen=True)
class Serving:
    """What the engine samples from, and what it was started with."""

    policy: PolicyVersion
    shape: ModelShape
    settings: EngineSettings


def why_unfit(serving: Serving, newer: Serving) -> str | None:
    """Why a running engine cannot go on with other weights, None if it can."""
    if newer.settings != serving.settings:
        return f"the settings {serving.settings} became {newer.settings}"
    if newer.policy.base_digest != serving.policy.base_digest:
        return "its adapter is for another model"
    return "; ".join(serving.shape.differences(newer.shape)) or None


def serving_of(served: Served, last: Serving | None = None) -> Serving:
    """The weights of a folder, as if they were a version of a policy, that came after ``last``.

    Raises:
        WeightsError: if the folder is sealed, and damaged.
        OSError: if there is no model in it.
    """
    folder = Path(served.folder)
    settings = EngineSettings.from_environment(served.model)
    if (folder / weights.MANIFEST).exists():
        weights.verify(folder)
    probes = folder / PROBES
    rank = json.loads((folder / "adapter_config.json").read_bytes())["r"] if served.base else 0
    is_of_last = last is not None and served.base and last.policy.job_id == served.job_id
    policy = PolicyVersion(
        job_id=served.job_id,
        attempt=served.attempt,
        number=served.version,
        folder=served.folder,
        digest="",
        base=served.base,
        base_digest=last.policy.base_digest if last and is_of_last else served.base,
        probes=Probes.model_validate_json(probes.read_bytes()) if probes.exists() else None,
    )
    return Serving(policy, shape_of(folder), replace(settings, lora_rank=rank))


class PolicyFollower:
    """Owns the engine and keeps it at the newest policy of the active job."""

    def __init__(self, service: Service, start_engine: StartEngine) -> None:
        self.service = service
        self.start_engine = start_engine
        self.engine: Engine | None = None
        self.serving: Serving | None = None  # None while the engine's weights are of no version
        self.active: ActiveJob | None = None  # at the last look
        self.at_hand: Served | None = None  # what the engine serves instead, while none is
        self.coming: Served | None = None  # what it will
        self.demand = Demand()
        self._started_with: Serving | None = None
        self._last_job = ""
        self._load_failures = 0
        self._reads_as = ""  # the digest of prompts that the engine's tokenizer makes as well
        self._refused: PolicyVersion | None = None  # whose weights the engine does not have
        self._changed = asyncio.Condition()
        self._gpu = asyncio.Lock()  # held while the engine starts, loads or sleeps
        self._turn = AsyncExitStack()  # on the GPU; it ends with the engine's sleep, or the process
        self.turns: asyncio.Task[None] | None = None  # the task that takes them
        self._fetcher = Fetcher(*service.deployment.weights_roots)

    def serves(self, job: ActiveJob) -> bool:
        """Whether a policy of this job is loaded, or has been and makes way for the next.

        None is once weights are refused, until others have answered their probes.
        """
        return self._last_job == job.job_id and self._refused is None

    def has_died(self) -> bool:
        return self.engine is not None and self.engine.has_died

    @asynccontextmanager
    async def engine_for(self, request: Asked) -> AsyncIterator[Engine]:
        """The engine, once it samples from a policy that may answer the request.

        It waits while weights are loaded, and as long as a learner needs to replay its log: who
        holds a request loses it if the job is cancelled or ends.

        Raises:
            Busy: if it would wait until an evaluation has ended, and others need not.
        """
        demand = self.demand
        with demand.holding(request):
            async with self._changed:
                await self._changed.wait_for(
                    lambda: demand.may_begin(request) or demand.is_for_others(request)
                )
            if demand.is_for_others(request):
                raise Busy
            assert self.engine is not None
            with demand.working_on(request):
                yield self.engine

    async def proven(self) -> None:
        """Wait until the weights in the engine have answered their probes.

        Raises:
            Busy: if they are not those of the version that was to be served.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.serving is not None or self._refused)
        if self.serving is None:
            raise Busy

    async def look(self) -> ActiveJob | None:
        """The active job that announces versions; beside a client's session folders are served."""
        job = await self.service.exchange.active()
        self.active = job if job is not None and job.recipe.client is None else None
        return self.active

    @property
    def answers(self) -> str:
        """The key of the calls that the engine answers now: none while its weights change."""
        if self.active is None:
            return self.at_hand.key if self.at_hand is not None else ""
        job_id = self.active.job_id
        serving = self.serving
        return f"job:{job_id}" if serving and serving.policy.job_id == job_id else ""

    def may_answer(self, key: str) -> bool:
        """Whether the engine answers calls of this key now, or soon without a look elsewhere."""
        if self.active is None:
            return key in {self.answers, self.coming.key if self.coming is not None else ""}
        return key.partition(":")[2] == self.active.job_id and self._refused is None

    async def serve(self, served: Served) -> None:
        """Have the weights of a folder at hand, unless a job that announces its own is active.

        Raises:
            EngineUnfit: if they need another engine.
            StartupFailed: if vLLM cannot serve them.
            ParityError: if the engine does not answer their probes as the learner did.
            EngineError: if they are not loaded.
            WeightsError: if the folder is damaged.
            OSError: if they cannot be read.
        """
        self.coming = served
        during = self.service.activity.during
        try:
            serving = await asyncio.to_thread(
                serving_of, served, self.serving or self._started_with
            )
            async with self._gpu:
                if await self.look() is not None:
                    return
                with during(Doing.LOADS_MODEL, timed="loading"):
                    await self._have(served, serving)
        finally:
            self.coming = None

    async def _have(self, served: Served, serving: Serving) -> None:
        folder = Path(served.folder)
        base = Path(served.base) if served.base else None
        started = self._started_with
        if self.engine is None or started is None:
            await self._start(folder, serving, base)
        elif served.folder == started.policy.base:  # which its adapters are for
            await self._load(None, serving, keep_kv=False)
        else:
            if not served.job_id and not started.settings.lora_rank:  # no recipe asks for others
                serving = replace(serving, settings=started.settings)
            await self._load(folder, serving, keep_kv=False)
        self.service.readiness.set(True)
        if not await self._answers_probes(serving.policy, served.model, {}):
            SYNC_FAILURES.labels("parity").inc()
            raise ParityError(self.service.activity.parity[-1])
        async with self._changed:
            self.at_hand = served
            self._last_job = ""
            self._refused = None
            self._changed.notify_all()

    async def engine_that_answers(self, key: str) -> Engine:
        """The engine, once it has the weights for calls of a key, which are proven to be those."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.answers == key)
        assert self.engine is not None
        return self.engine

    async def follow_policy_forever(self) -> None:
        """Consumes the announcements of the active job; produces an engine at the newest one.

        Waits for: an active job, a policy that is not served yet. Unblocked by: the learner.

        Raises:
            EngineUnfit: if the policy needs another engine.
            StartupFailed: if no engine starts for the job, or it dies before it has served it.
            EngineError: if the engine has died, or fails to load three times.
        """
        while not self.service.stopping.is_set():
            await self.service.pause(await self._follow_once())

    async def watch_engine_forever(self) -> None:
        """Consumes nothing; produces an error when a process of the engine has ended.

        Waits for: the next look. Unblocked by: time.

        Raises:
            EngineDied: if the engine has died, whether or not it was at work.
            StartupFailed: if it has before it served anything.
            LoadError: if it could not sleep or wake up.
        """
        while not await self.service.pause(_POLL_S):
            if self.has_died():
                raise self._death_as(EngineDied(last_words.ended()))
            if self.turns is not None and self.turns.done():
                self.turns.result()

    def _death_as(self, error: EngineDied) -> EngineDied | StartupFailed:
        """Before an engine has served anything, its job is to hear of it."""
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
        """Look for a newer policy and take it; returns how long to wait before the next look."""
        job = await self.look()
        newest = await self.service.exchange.newest_policy(job.job_id) if job else None
        if job is None or newest is None:
            if self.engine is None:
                self.service.readiness.set(False, "no policy has been announced")
            return _POLL_S
        self.demand.newest = newest
        self.demand.last_version = job.recipe.training.steps
        async with self._changed:  # what is wanted may have changed, too
            self._changed.notify_all()
        wanted = self.demand.wanted or newest
        if self._has_taken(wanted) or not self.demand.may_switch:
            return _POLL_S
        return await self._try_to_take(wanted, job)

    def _has_taken(self, policy: PolicyVersion) -> bool:
        """Whether it is served, or refused, whatever else it tells by now, and wherever it lies."""
        taken = self.serving.policy if self.serving else self._refused
        rest = _MAY_DIFFER
        return bool(taken) and taken.model_dump(exclude=rest) == policy.model_dump(exclude=rest)

    async def _try_to_take(self, newest: PolicyVersion, job: ActiveJob) -> float:
        folder = self.service.deployment.memory_dir / newest.folder
        try:
            during = self.service.activity.during
            loading = during(Doing.LOADS_VERSION, newest.number, timed="loading")
            with loading, ExitStack() as lease:
                # First: a base that is damaged says nothing of the adapter's links.
                base = await asyncio.to_thread(lease.enter_context, self._base_of(newest))
                began = time.monotonic()
                fetched = self._fetcher.fetched(newest)
                folder = await asyncio.to_thread(lease.enter_context, fetched)
                seconds = {"fetch": time.monotonic() - began}
                await self._take(folder, base, newest, job, seconds)
        except WeightsGone as error:
            return self._failed("gone", error, _GONE_S)
        except (WeightsError, OSError) as error:  # of a full disk, for one
            return self._failed("damaged", error, _RETRY_S)
        except LoadError as error:
            if not folder.exists():
                return self._failed("gone", error, _POLL_S)  # taken away while it was read
            self._load_failures += 1
            if self._load_failures >= _MAX_LOAD_FAILURES:
                raise
            return self._failed("load", error, _RETRY_S)
        return _POLL_S

    def _failed(self, why: str, error: Exception, retry_s: float) -> float:
        SYNC_FAILURES.labels(why).inc()
        log.warning("weights were not loaded", extra={"why": why, "error": str(error)})
        if self.serving is None:
            self.service.readiness.set(False, f"weights {why}: {error}")
        return retry_s

    @contextmanager
    def _base_of(self, policy: PolicyVersion) -> Iterator[Path | None]:
        """The model that an adapter is for, verified, where an engine is to start on it."""
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
        newest: PolicyVersion,
        job: ActiveJob,
        seconds: dict[str, float],
    ) -> None:
        settings = EngineSettings.from_environment(job.recipe.model)
        started = time.monotonic()
        shape = await asyncio.to_thread(verified_shape, folder, newest.digest)
        seconds["verify"] = time.monotonic() - started
        serving = Serving(newest, shape, settings)
        async with self._gpu:
            if self.engine is None:
                await self._start(folder, serving, base)
            else:
                keep_kv = job.recipe.rollout.kv_after_sync == "keep"
                seconds |= await self._load(folder, serving, keep_kv=keep_kv)
            async with self._changed:  # it may sample meanwhile: what it makes waits to be proven
                self.demand.serving = newest
                self._changed.notify_all()
            try:
                answers = await self._answers_probes(newest, job.recipe.model, seconds)
            except EngineDied as error:
                raise self._death_as(error) from error
        if answers:
            await self._serve(serving, seconds)
        else:
            await self._refuse(newest)

    async def _start(self, folder: Path, serving: Serving, base: Path | None) -> None:
        self.service.readiness.set(False, "the engine is starting")
        label = version_label(serving.policy.attempt, serving.policy.number)
        with self.service.activity.during(Doing.STARTS_ENGINE):
            try:
                self.engine = await self.start_engine(folder, label, serving.settings, base)
            except EngineError as error:
                raise StartupFailed(str(error), serving.policy.job_id) from error
        self._started_with = serving
        DEVICES.set(serving.settings.num_gpus)

    async def _load(
        self, folder: Path | None, serving: Serving, *, keep_kv: bool
    ) -> dict[str, float]:
        assert self.engine is not None
        assert self._started_with is not None
        reason = why_unfit(self._started_with, serving) if folder else None
        if reason is not None:
            raise EngineUnfit(f"the new policy needs another engine, so this one ends: {reason}")
        label = version_label(serving.policy.attempt, serving.policy.number)
        self.serving = self.demand.serving = None  # requests wait until a load has succeeded
        self.at_hand = None  # which ends the calls for it
        return await self.engine.load(folder, label, keep_kv=keep_kv)

    async def _answers_probes(
        self, policy: PolicyVersion, model: Model, seconds: dict[str, float]
    ) -> bool:
        """Have the engine score the probes; whether it answers as the learner does.

        The status tells the learner, and goes on telling.
        """
        if (probes := policy.probes) is None:
            return True
        assert self.engine is not None
        given = await self.engine.score(probes.token_ids, seconds)
        if self._reads_as != probes.rendered:
            read = (model.prompt_template, model.chat_template_options)
            try:
                self._reads_as = await self.engine.prompts.digest(probes.tasks, *read)
            except Unworkable as error:  # the learner came to an end of it
                log.error("prompts of the probes", extra={"why": str(error)})
                self._reads_as = ""
        report = ParityReport(
            **{"job_id": policy.job_id, "attempt": policy.attempt, "version": policy.number},
            **compare_logprobs(given, probes),
            rollout=self.service.display_name,
            most=probes.most,
            same_prompts=self._reads_as == probes.rendered,
        )
        self.service.activity.parity.append(report)
        return report.agrees

    async def _refuse(self, policy: PolicyVersion) -> None:
        """Sample nothing, and let nothing go that these weights have sampled."""
        async with self._changed:
            self.serving = None
            self._refused = policy
            self.demand.serving = None
            self._changed.notify_all()
        SYNC_FAILURES.labels("parity").inc()
        why = f"the engine does not answer as version {policy.number} of the policy"
        self.service.readiness.set(False, why)
        log.error("weights are refused", extra={"policy": policy.folder})

    async def _serve(self, serving: Serving, seconds: dict[str, float]) -> None:
        self._load_failures = 0
        self.demand.has_loaded(sum(seconds.values()))
        for phase, duration in seconds.items():
            SYNC_SECONDS.labels(phase).observe(duration)
        SYNCS.inc()
        POLICY_VERSION.set(serving.policy.number)
        async with self._changed:
            self.serving = serving
            self._last_job = serving.policy.job_id
            self._refused = None
            self._changed.notify_all()
        self.service.readiness.set(True)
        log.info(
            "policy loaded",
            extra={"policy": serving.policy.folder, "seconds": seconds},
        )
