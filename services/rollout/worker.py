"""The worker samples a group for each request."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from prometheus_client import Counter, Gauge, Histogram
from protocol.messages import ActiveJob, Doing, FinishReason, RolloutGroup, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, FAILED, REQUESTS, ROLLOUTS

from services.chassis.consumer import Consumer, work_forever
from services.chassis.metrics import PHASES, start_at_zero
from services.chassis.prompts import check_length
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.rollout.calls import CallServer
from services.rollout.engine import Engine
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import TOKENS, Sample, begins_thinking, build_group

GROUPS = start_at_zero(
    Counter("weir_sampled_groups_total", "Groups sampled", ["purpose"]), *Purpose
)
RESPONSES = start_at_zero(
    Counter("weir_sampled_responses_total", "Responses sampled", ["finish_reason"]), *FinishReason
)
PROMPT_TOKENS = Counter("weir_prompt_tokens_total", "Tokens of the prompts, once per group")
SAMPLING = Gauge("weir_groups_sampling", "Groups that are in the engine now")
GROUP_SECONDS = Histogram(
    "weir_group_sampling_seconds",
    "From a group's entry into the engine to its last token",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
RESPONSE_TOKENS = Histogram(
    "weir_response_tokens",
    "Length of a response",
    buckets=tuple(2**power for power in range(3, 17)),
)


async def sample_groups(service: Service) -> None:
    """Run the rollout service: follow the policy, and sample the requested groups."""
    PHASES.name("sleeping", "loading", "sampling", idle="idle")
    # The renderer starts before the first engine.
    async with PromptRenderer() as prompts:
        await _sample_groups(service, PolicyFollower(service, partial(Engine.start, prompts)))


async def _sample_groups(service: Service, follower: PolicyFollower) -> None:
    sampler = GroupSampler(follower)
    call_server = CallServer(follower)
    service.activity.moved = lambda: follower.engine.progress if follower.engine else 0
    service.activity.at_once = lambda: call_server.num_episode_calls
    stage = Consumer(
        inputs=(EVAL_REQUESTS, REQUESTS),
        output=ROLLOUTS,
        failures=FAILED,
        handle=sampler.sample_group,
        free_slots=sampler.room,
        is_open=follower.serves,
        has_died=follower.has_died,
        excluded_inputs=follower.demand.excluded_streams,
        doing=Doing.SAMPLES,
    )
    # The task must have its turn on the GPU before an engine starts.
    follower.turns = asyncio.create_task(follower.take_turns_forever())
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follower.follow_policy_forever())
            tasks.create_task(follower.watch_engine_forever())
            tasks.create_task(work_forever(service, stage))
            tasks.create_task(call_server.answer_forever())
    finally:
        follower.shut_down()
        follower.turns.cancel()


class GroupSampler:
    def __init__(self, follower: PolicyFollower) -> None:
        self.follower = follower

    def room(self, job: ActiveJob, claimed: int) -> int:
        engine = self.follower.engine
        return engine.room(job.recipe.rollout.group_size, claimed) if engine else 0

    async def sample_group(self, job: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        """Sample the group of a request.

        Raises:
            PromptError: if the task makes no prompt of this model, or one that is too long.
            SamplingError: if vLLM aborts a response.
        """
        model = job.recipe.model
        sampling = request.sampling
        async with self.follower.acquire_engine(request) as engine:
            prompt = await engine.prompts.render(
                request.task, request.prompt_template, model.chat_template_options
            )
            check_length(request.task, prompt, model.max_context, sampling.max_tokens)
            started = time.monotonic()
            with SAMPLING.track_inprogress(), PHASES.during("sampling"):
                samples = await engine.generate(prompt, sampling, request.group_size, request.seed)
                await self.follower.wait_for_probes()
            seconds = time.monotonic() - started
            _count(request, prompt, samples)
            GROUP_SECONDS.observe(seconds)
            return build_group(
                request,
                prompt,
                samples,
                seconds,
                begins_thinking=begins_thinking(engine.tokenizer, prompt),
            )


def _count(request: RolloutRequest, prompt: list[int], samples: list[Sample]) -> None:
    GROUPS.labels(request.purpose).inc()
    PROMPT_TOKENS.inc(len(prompt))
    for sample in samples:
        RESPONSES.labels(sample.finish_reason).inc()
        TOKENS.inc(len(sample.token_ids))
        RESPONSE_TOKENS.observe(len(sample.token_ids))
