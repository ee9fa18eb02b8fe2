"""The time of a step and of a run on GPUs, by arithmetic. Every assumption is a constant here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from protocol.capacity import count_tasks
from protocol.recipe import Recipe, Rollout
from protocol.rewards import JudgeCheck
from protocol.weights import HASHING_THREADS

from services.learner.planning.footprint import RolloutFootprint, TrainedModel
from services.learner.planning.machine import Machine

# Shares of the hardware's peak.
# Training reaches `FLOPS_USED` with large models and long contexts, and half of it at `HALF_AT`
# FLOPs of a forward pass per token, since the norms, the loss and the launches cost the same for
# all. Both are fitted to the published runs of docs/performance.md.
FLOPS_USED = 0.4
HALF_AT = 3e9
PREFILL_USED = 0.5  # of the FLOP/s, while an engine reads prompts: assumed
BANDWIDTH_USED = 0.45  # while an engine decodes, which also waits for kernels: fitted likewise
# Shares of the limits of a recipe.
LENGTH_USED = 0.5  # of the longest response, by the mean one: assumed, since a limit leaves room
PROMPT_USED = 0.25  # of the rest of the context, by prompts and an environment: assumed
GROUPS_KEPT = 0.5  # of the sampled groups, by dynamic sampling: assumed
CORRECT = 0.5  # of the responses, for a judge that reads only correct ones: assumed
# Speeds.
LEARNER_COPIES = 4e9  # bytes/s that a rank copies into memory that is not pinned: estimated
HOST_ADAMW = 1.6e9  # parameters/s of fused AdamW on a core of an AMD EPYC at 47 GB/s: measured
LINK = 2e10  # bytes/s between a GPU and pinned memory: assumed; PCIe 4.0 x16 has 3.2e10
ROLLOUT_VERIFIES = 1.7e9  # bytes/s of sha256 in one thread: measured
ROLLOUT_LOADS = 4.3e9  # bytes/s from files in the page cache to a GPU: measured
# A judge such as gpt-oss-20b: estimated.
JUDGE_TOKENS = {"low": 600, "medium": 1200, "high": 3600}  # tokens of an answer, by effort
JUDGE_SPEED = 9e3  # tokens/s on an H100 with 128 concurrent calls: 8,000 to 10,000
TOLERANCE = 0.3  # of a prediction, by which each published run misses it at most
ASSUMED = (
    f"ranges are ± {TOLERANCE:.0%}, and hold at the assumed lengths; unless measured "
    f"(--flops-used), at most {FLOPS_USED:.0%} of a GPU's FLOP/s, half of that at "
    f"{HALF_AT / 1e9:.0f} GFLOP a token; {PREFILL_USED:.0%} to read prompts, {BANDWIDTH_USED:.0%} "
    f"of its memory bandwidth; the mean response has {LENGTH_USED:.0%} of the longest, "
    f"the mean prompt {PROMPT_USED:.0%} of the rest of the context; dynamic sampling keeps "
    f"{GROUPS_KEPT:.0%} of the groups; {CORRECT:.0%} of the responses are correct. Not counted: "
    "rules, the reading of judges, the judging of evaluations, checkpoints, communication between "
    "GPUs"
)


@dataclass(frozen=True)
class Span:
    what: str
    seconds: float
    formula: str

    @property
    def range(self) -> tuple[float, float]:
        return self.seconds * (1 - TOLERANCE), self.seconds * (1 + TOLERANCE)


@dataclass(frozen=True)
class Estimate:
    """The time that a recipe takes on a machine with GPUs."""

    recipe: Recipe
    models: Sequence[TrainedModel]
    machine: Machine
    rollout: RolloutFootprint

    def spans(self, held_out: Mapping[str, int]) -> tuple[Span, ...]:
        """Return the parts of a step, each evaluation, a step, and the run.

        Args:
            held_out: the number of tasks of each evaluation.
        """
        sampling = self.sampling()
        judging = tuple(self._judging())
        verifying, *loading = self._syncing()
        learning = tuple(self._learning())
        engine_seconds = _sum((sampling, *loading))
        shares_a_gpu = self.machine.shares_a_gpu
        if self.recipe.training.max_staleness and not shares_a_gpu:
            stages = list(filter(None, [(sampling, *loading), judging, learning]))
            names = "; ".join(" + ".join(part.what for part in stage) for stage in stages)
            step = Span("a step", max(map(_sum, stages)), f"the longest of {names}")
        else:
            reason = "they share a GPU" if shares_a_gpu else "max_staleness 0"
            if judging:
                reason += "; judging goes on beside sampling"
            responding = max(sampling.seconds, _sum(judging))
            seconds = responding + _sum((verifying, *loading, *learning))
            step = Span("a step", seconds, f"one after the other: {reason}")
        evaluating = tuple(self._evaluating(held_out))
        idle_seconds = 0.0 if shares_a_gpu else step.seconds - engine_seconds
        run = self._run(step, idle_seconds, evaluating)
        parts = (sampling, *judging, verifying, *loading, *learning)
        return (*parts, *(span for _, span in evaluating), step, run)

    @cached_property
    def _prompt(self) -> float:
        """Tokens of the mean prompt, messages of an environment included."""
        return PROMPT_USED * (self.recipe.model.max_context - self.recipe.longest_response)

    @cached_property
    def _response(self) -> float:
        """Tokens of the mean response."""
        return LENGTH_USED * self.recipe.longest_response

    @cached_property
    def _length(self) -> float:
        return self._prompt + self._response

    @cached_property
    def _step_tokens(self) -> float:
        """Tokens that a step trains on, prompts included."""
        recipe = self.recipe
        return recipe.training.groups_per_step * recipe.rollout.group_size * self._length

    @cached_property
    def _groups(self) -> float:
        """Groups that are sampled and graded for a step."""
        training = self.recipe.training
        return training.groups_per_step / (GROUPS_KEPT if training.dynamic_sampling else 1.0)

    @cached_property
    def _engine_groups(self) -> int:
        return math.ceil(self._groups / len(self.machine.placement.rollouts))

    @cached_property
    def _concurrent_responses(self) -> int:
        """Responses that an engine samples at the same time."""
        responses = self._engine_groups * self.recipe.rollout.group_size
        fitting = int(self.rollout.room / (self.rollout.bytes_per_token * self._length))
        return max(1, min(responses, self.machine.engine_sequences, fitting))

    def _flops(self, token_flops: float) -> float:
        """Return the FLOP/s of a GPU with a model of so many FLOPs per token."""
        share = self.machine.flops_used
        if share is None:
            share = FLOPS_USED * token_flops / (token_flops + HALF_AT)
        return share * self.machine.kind.flops

    @property
    def _prefill_flops(self) -> float:
        return self.machine.kind.flops * PREFILL_USED * self.machine.gpus_per_engine

    def sampling(self) -> Span:
        """Read prompts, bound by FLOPs, then decode, bound by FLOPs or bandwidth."""
        policy = self.models[0]
        shape = policy.shape
        machine = self.machine
        groups = self._engine_groups
        prompt = self._prompt
        responses = groups * self.recipe.rollout.group_size
        concurrent = self._concurrent_responses
        # At the end the longest response is sampled alone.
        rounds = max(responses * self._response / concurrent, self.recipe.longest_response)
        context = prompt + self._response / 2  # of the mean token
        cache_bytes = responses * self._response * context * self.rollout.bytes_per_token
        weight_bytes = shape.parameters * policy.size / machine.gpus_per_engine
        bandwidth = machine.kind.bandwidth * BANDWIDTH_USED
        reading = (rounds * weight_bytes + cache_bytes) / bandwidth
        token_flops = shape.forward_flops(2 * context)
        flops = self._flops(token_flops) * machine.gpus_per_engine
        computing = responses * self._response * token_flops / flops
        prefill = groups * prompt * shape.forward_flops(prompt) / self._prefill_flops
        return Span(
            "sampling",
            prefill + max(reading, computing),
            f"{responses:,} responses of {self._response:,.0f} tokens an engine, {concurrent:,} at "
            f"once: prompts {prefill:,.1f} s, then the larger of reading weights and cache "
            f"{reading:,.1f} s and computing {computing:,.1f} s",
        )

    def _judging(self) -> Iterator[Span]:
        """Count the tokens that judges write; rules may decide some answers without a judge."""
        reward = self.recipe.reward
        responses = self._groups * self.recipe.rollout.group_size
        calls = tokens = 0.0
        for checks, default_sees in ((reward.outcome, "all"), (reward.process, reward.process_for)):
            for check in checks:
                if isinstance(check, JudgeCheck):
                    only_correct = "correct" in (check.sees, default_sees)
                    check_calls = responses * (CORRECT if only_correct else 1.0) * check.samples
                    answer_tokens = min(JUDGE_TOKENS[check.reasoning_effort], check.max_tokens)
                    calls += check_calls
                    tokens += check_calls * answer_tokens
        judge = self.machine.placement.judge
        num_gpus = len(judge.gpus) if judge else 1
        if calls:
            yield Span(
                "judging",
                tokens / num_gpus / JUDGE_SPEED,
                f"{calls:,.0f} calls of {tokens / calls:,.0f} tokens, at {JUDGE_SPEED:,.0f} a "
                f"second on each of {num_gpus} GPUs{'' if judge else ' elsewhere, an assumption'}",
            )

    def _syncing(self) -> Iterator[Span]:
        """Verify and load new weights, and read unfinished responses again."""
        published = self.models[0].parameters * self.models[0].size
        keeps_cache = self.recipe.rollout.kv_after_sync == "keep"
        takes_turns = self.machine.takes_turns
        formula = "while an engine pauses"
        if keeps_cache:
            formula += "; unfinished responses keep their KV, which costs nothing"
        yield Span(
            "verifying",
            2 * published / (HASHING_THREADS * ROLLOUT_VERIFIES),
            f"sha256 by {HASHING_THREADS} threads, of the learner behind its step and of the "
            "rollout while it samples",
        )
        loading = published / self.machine.gpus_per_engine / ROLLOUT_LOADS
        yield Span("loading", loading, formula)
        if self.recipe.training.max_staleness and (takes_turns or not keeps_cache):
            length = self._prompt + self._response / 2
            flops = self.models[0].shape.forward_flops(length)
            concurrent = self._concurrent_responses
            formula = (
                f"up to {concurrent:,} unfinished responses of {length:,.0f} tokens an engine, "
                "read again under new weights"
            )
            if not takes_turns:
                formula += "; rollout.kv_after_sync = 'keep' costs nothing"
            seconds = concurrent * length * flops / self._prefill_flops
            yield Span("recomputing", seconds, formula)

    def _learning(self) -> Iterator[Span]:
        policy = self.models[0]
        published = policy.parameters * policy.size
        yield self._training()
        yield from self._offloading()
        writing = LINK * self.machine.ranks_of_node
        memory = "pinned memory, side by side"
        if self.recipe.model.lora is not None:
            writing = LEARNER_COPIES
            memory = "memory that is not pinned, by one rank"
        yield Span(
            "publishing",
            published / writing,
            f"{published / 1e9:,.1f} GB into {memory}; the learner waits",
        )
        if self.machine.takes_turns:
            weights = policy.shape.parameters * policy.size / self.machine.gpus_per_engine
            formula = f"weights to the host and back at {LINK:.1g} bytes/s"
            yield Span("sleeping", 2 * weights / LINK, formula)

    def _training(self) -> Span:
        """Count forward and backward passes; a backward pass is two, or one of an adapter."""
        algorithm = self.recipe.algorithm
        training = self.recipe.training
        backward, words = (2, "two") if self.recipe.model.lora is None else (1, "one")
        recomputed = training.recompute_activations is True
        passes = 1 + backward + recomputed
        passes += algorithm.old_logprobs == "recompute" and training.updates_per_batch > 1
        references = algorithm.divergence_weight > 0
        token_flops = self.models[0].shape.forward_flops(self._length)
        flops = self._flops(token_flops)
        token_seconds = (passes + references) * token_flops / flops
        others = ", 1 of the reference" if references else ""
        for critic in self.models[1:]:
            critic_passes = 4 + recomputed  # first values, then training
            critic_flops = critic.shape.critic_flops(self._length)
            token_seconds += critic_passes * critic_flops / self._flops(critic_flops)
            others += f", {critic_passes} of the critic"
        num_gpus = self.models[0].num_gpus
        peak = self.machine.kind.flops
        tokens = self._step_tokens
        return Span(
            "training",
            tokens * token_seconds / num_gpus,
            f"{tokens / 1e6:,.1f} M tokens, {passes} passes of the policy{others}, a backward "
            f"pass being {words}; {num_gpus} GPUs at {flops / peak:.0%} of "
            f"{peak / 1e12:,.0f} TFLOP/s",
        )

    def _offloading(self) -> Iterator[Span]:
        """Move gradients and weights over the link, and run AdamW on cores."""
        training = self.recipe.training
        recomputed = training.recompute_activations is True
        updates = training.updates_per_batch
        update_tokens = self._step_tokens / updates
        batches = math.ceil(update_tokens / training.micro_batch_tokens / self.models[0].num_gpus)
        link_bytes = 0.0
        host_parameters = 0.0
        for model in self.models:
            if not model.offloads:
                continue
            parameter_bytes = 8 + 8 * batches if model.stage == 3 else 4 + model.size
            link_bytes += updates * parameter_bytes * model.parameters / model.num_gpus
            if model.settings.offload == "all":  # forward, recomputed, backward
                gathered = batches * (2 + recomputed) * model.weights
                link_bytes += updates * gathered * model.size / model.num_gpus
            host_parameters += updates * model.parameters / model.num_gpus
        if host_parameters:
            link_seconds = link_bytes / LINK
            host_seconds = host_parameters / HOST_ADAMW
            yield Span(
                "offloading",
                link_seconds + host_seconds,
                f"{updates} updates of {batches} micro-batches a rank: {link_bytes / 1e9:,.1f} GB "
                f"to and from the host {link_seconds:,.1f} s, AdamW there {host_seconds:,.1f} s",
            )

    def _evaluating(self, held_out: Mapping[str, int]) -> Iterator[tuple[int, Span]]:
        """Yield the interval of each evaluation in steps, and the time to sample it."""
        recipe = self.recipe
        for name, evaluation in recipe.evaluations.items():
            if tasks := count_tasks(evaluation, held_out.get(name, 0)):
                settings = {"groups_per_step": tasks, "dynamic_sampling": False}
                sampling = recipe.evaluation_sampling(evaluation)
                changes = {
                    "training": recipe.training.model_copy(update=settings),
                    "rollout": Rollout(group_size=evaluation.samples, sampling=sampling),
                }
                span = replace(self, recipe=recipe.model_copy(update=changes)).sampling()
                interval = evaluation.every or self.recipe.training.steps or 1
                yield interval, replace(span, what=f"evaluating {name}".strip())

    def _run(self, step: Span, idle_seconds: float, evaluating: Sequence[tuple[int, Span]]) -> Span:
        """Add all steps, and the sampling of evaluations that engines have no idle time for."""
        steps = self.recipe.training.steps
        pretraining = self.recipe.num_pretrain_steps
        text = (
            f" + {self.recipe.pretrain_steps_in_words} of the critic alone" if pretraining else ""
        )
        formula = f"({steps:,} steps{text}) x {step.seconds:,.1f} s"
        seconds = (steps + pretraining) * step.seconds
        if evaluating:
            counts = [math.ceil(steps / interval) + 1 for interval, _ in evaluating]
            spans = [span for _, span in evaluating]
            total = sum(count * span.seconds for count, span in zip(counts, spans, strict=True))
            waiting = max(0.0, total - steps * idle_seconds)
            seconds += waiting
            formula += f" + {waiting:,.0f} s of waiting for {sum(counts):,} evaluations"
        return Span("the run", seconds, formula)


def _sum(spans: Sequence[Span]) -> float:
    return sum(span.seconds for span in spans)
