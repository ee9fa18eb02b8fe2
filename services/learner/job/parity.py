"""Parity: each rollout proves for every version that it computes the learner's log-probs.

At each publish the learner scores a fixed sequence, the probes, with the published weights. A
rollout scores it after loading them, and reports. If the two differ by more than the limit, its
samples do not count, and the job pauses with a message that names the rollout's version. Every few
steps some of a step's tokens are compared as well, by the weights that sampled them: only sampled
tokens reveal a wrong temperature or a stale KV cache.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, NoReturn

import numpy as np
from protocol.messages import ParityReport, Probes, Task

from services.chassis.prompts import PromptError, UnknownToken
from services.chassis.renderer import PromptRenderer
from services.learner.attempt import Attempt
from services.learner.durable.progress import Progress
from services.learner.job.control import Control
from services.learner.training.batching import blank_sample
from services.learner.training.ranks import Team
from services.learner.training.samples import Measured, Sample

# Probes. Every announcement carries them, so they are few and short.
_MAX_TASKS = 8
_MAX_TASK_CHARS = 2000
_MAX_TOKENS = 97
# Limits of the mean gap by dtype: the smallest, the largest, and a multiple of the first reports'
# gaps between them. Rounding in float32 varies most between models, and faults are far above it.
# For the others they are 2 and 7 times the rounding (2^-11, 2^-8) of logits with `_SPREAD`.
_LIMITS = {"float32": (1e-5, 1e-3, 10), "float16": (4e-3, 1.4e-2, 3), "bfloat16": (3e-2, 0.11, 3)}
_SPREAD = 4.0  # standard deviation of logits over the ids
_MIN_SPREAD = 0.25  # an entropy in float32 cannot show a smaller one
_HOT_TEMPERATURE = 100.0  # logits divided by it are small enough for the entropy's expansion
_FIRST_REPORTS = 3  # their smallest gap stands for a healthy rollout
MIN_COMPARED_TOKENS = 100  # the mean gap of fewer tokens is too noisy


class Parity:
    """The reports of the rollouts of one attempt."""

    def __init__(self, attempt: Attempt, progress: Progress, control: Control) -> None:
        self.attempt = attempt
        self.progress = progress
        self.control = control
        self.template: Probes | None = None  # without log-probs; None if no task can be read
        self._first_gaps: list[float] = []
        self._spread_ratio: float | None = None  # the spread of logits divided by `_SPREAD`
        self._mean_logprob = 1.0  # of the probes, absolute; their gaps are relative to it
        self._handled: set[ParityReport] = set()  # the reports in the statuses of the last poll
        self._results: dict[tuple[str | None, int], dict[str, Any]] = {}  # since the last step

    async def choose_probes(self, prompts: PromptRenderer, tasks: Sequence[Task]) -> None:
        """Make the probes from the prompts of the first tasks.

        Raises:
            LimitExceeded: if the model's template or tokenizer takes too long.
            UnknownToken: if the model has no row for a token of every prompt, so of the template.
        """
        model = self.attempt.recipe.model
        rendering = (model.prompt_template, model.chat_template_options)
        length = min(_MAX_TOKENS, model.max_context - 1)
        probed: list[Task] = []
        missing_row: UnknownToken | None = None
        tokens: list[int] = []
        for task in tasks[:_MAX_TASKS]:
            task = Task(id=task.id, prompt=task.prompt, messages=task.messages)
            if probed and len(task.model_dump_json()) >= _MAX_TASK_CHARS:
                continue
            try:
                tokens += await prompts.render(task, *rendering)
                probed.append(task)
            except UnknownToken as error:
                missing_row = error
            except PromptError:
                pass  # the rollouts report it
        if missing_row is not None and not probed:
            raise missing_row
        if tokens and length > 1:
            self.template = Probes(
                tasks=tuple(probed),
                token_ids=tuple(islice(cycle(tokens), length)),
                rendered=await prompts.digest(probed, *rendering),
                logprobs=(),
                most=self.limit,
            )

    @property
    def limit(self) -> float:
        """The largest mean gap: the recipe's, or a multiple of the first reports' gaps.

        Gaps of healthy models are as large as the rounding of their logits, which grows with the
        spread of the logits over the ids (a standard deviation). In bfloat16 they are 3.5 times
        2^-8 of it for the probes of SmolLM2 and of the demo's model. So the limits grow with it.
        """
        smallest, largest, factor = _LIMITS[self.attempt.recipe.model.dtype]
        if self.attempt.recipe.training.max_parity is not None:
            return self.attempt.recipe.training.max_parity
        scale = (self._spread_ratio or 1.0) / self._mean_logprob
        if len(self._first_gaps) < _FIRST_REPORTS:
            return scale * largest
        return min(scale * largest, max(scale * smallest, factor * min(self._first_gaps)))

    async def score(self, team: Team, version: int) -> None:
        """Score the probes with the current weights, which are of this version."""
        if self.template is None:
            return
        measured = await team.score([_probe_sample(self.template.token_ids)], 1.0)
        logprobs = measured.tokens.get("logprobs", np.array([np.nan]))
        if np.isfinite(logprobs).all():  # otherwise the loss is not finite, which is reported
            self.progress.note_probes(version, logprobs.astype(float).round(7).tolist())
            if self._spread_ratio is None:
                await self._measure_spread(team, self.template, logprobs)

    async def _measure_spread(self, team: Team, template: Probes, logprobs: np.ndarray) -> None:
        """Measure the spread of logits: a hot entropy is log(ids) - (spread / temperature)² / 2."""
        measured = await team.score([_probe_sample(template.token_ids)], _HOT_TEMPERATURE)
        entropies = measured.tokens.get("entropies")
        if entropies is not None:
            deficit = max(0.0, math.log(team.num_ids or 1) - float(entropies.mean()))
            spread = max(_MIN_SPREAD, _HOT_TEMPERATURE * math.sqrt(2 * deficit))
            self._spread_ratio = spread / _SPREAD
            self._mean_logprob = max(1.0, float(np.abs(logprobs).mean()))

    def find_probes(self, version: int) -> Probes | None:
        """Return the probes of a version, or None if it was not scored."""
        scored = {n: tuple(logprobs) for n, logprobs in self.progress.probes.items()}
        if self.template is None or version not in scored:
            return None
        earlier = {n: logprobs for n, logprobs in scored.items() if n < version}
        update = {"logprobs": scored[version], "earlier": earlier, "most": self.limit}
        return self.template.model_copy(update=update)

    async def watch_forever(self) -> NoReturn:
        """Consumes the rollouts' statuses; produces events, and a pause if one does not agree.

        Waits for: the next heartbeat. Unblocked by: time.
        """
        this_attempt = (self.attempt.job_id, self.attempt.number)
        while True:
            statuses = (await self.attempt.exchange.statuses()).values()
            reports = [report for status in statuses for report in status.parity]
            for report in reports:
                is_new = report not in self._handled
                if is_new and (report.job_id, report.attempt) == this_attempt:
                    await self._handle(report)
            self._handled = set(reports)
            await asyncio.sleep(self.control.service.deployment.heartbeat_s)

    async def _handle(self, report: ParityReport) -> None:
        result = report.model_dump(include={"rollout", "version", "mean", "max", "most"})
        result["agrees"] = report.agrees
        self._results[report.rollout, report.version] = result
        if not report.agrees:
            message = f"{self._explain(report)}; restart {report.rollout}, then resume the job"
            await self._pause(f"{report.rollout}:{report.version}", message, result)
        elif len(self._first_gaps) < _FIRST_REPORTS and report.mean is not None:
            self._first_gaps.append(report.mean)

    def _explain(self, report: ParityReport) -> str:
        """Return which version the rollout answers with, and the likely cause."""
        if not report.same_prompts:
            return (
                f"{report.rollout} renders the tasks' prompts as other tokens than the learner: it "
                "has another tokenizer or chat template, or other releases of transformers"
            )
        learner = f"the learner is at {report.version}"
        if report.holds is not None:
            is_base = report.holds == 0 and self.attempt.recipe.model.lora is not None
            cause = "the adapter is not loaded" if is_base else "its engine took no newer weights"
            return f"{report.rollout} answers as version {report.holds}; {learner}; {cause}"
        gap = "not finite" if report.mean is None else f"{report.mean:.1e} on average"
        return (
            f"{report.rollout} answers as no version; {learner}; the gap is {gap}, above "
            f"{report.most:.1e}; its engine did not load all weights, has some in the wrong place "
            "(a layer, the head), or computes otherwise (kernels, how it decodes, another release "
            "of vLLM)"
        )

    async def check_sampled(self, measured: Measured, version: int, temperature: float) -> bool:
        """Pause if tokens were not sampled with the log-probs of their version; else return True.

        Rounding of logits counts more at a low temperature.
        """
        mean = measured.metrics.get("parity_mean")
        num_tokens = measured.metrics.get("parity_tokens", 0)
        if mean is None or num_tokens < MIN_COMPARED_TOKENS:
            return True
        recipe = self.attempt.recipe
        _, largest, _ = _LIMITS[recipe.model.dtype]
        limit = recipe.training.max_parity or (self._spread_ratio or 1.0) * largest
        agrees = mean * min(1.0, temperature) <= limit
        result = {
            "rollout": None,
            "version": version,
            "mean": mean,
            "max": measured.metrics.get("parity_max"),
            "most": limit,
            "agrees": agrees,
        }
        self._results[None, version] = result
        if agrees:
            return True
        causes = ["the engine computes this model differently"]
        if temperature != 1:
            causes.append(f"temperature {temperature:g} is applied twice or not at all")
        if version > 0:
            causes.append("the KV cache is of other weights")
        message = (
            f"tokens sampled by version {version} have log-probs that differ from those of its "
            f"weights by {mean:.1e} on average, above {limit:.1e}"
            f"{', though the probes agree' if self._first_gaps else ''}: {', or '.join(causes)}; "
            "check the rollouts, then resume the job"
        )
        await self._pause(f"tokens:{version}", message, result)
        return False

    async def _pause(self, key: str, message: str, result: dict[str, Any]) -> None:
        event_id = f"parity:{self.attempt.number}:{key}"
        await self.attempt.warn(event_id, message, parity=[result])
        await self.control.pause(message)

    def take_results(self) -> dict[str, Any]:
        """Return the comparisons since the last call, for the event of a step."""
        results = [*self._results.values()]
        self._results.clear()
        if not results:
            return {}
        gaps = [result["mean"] for result in results if result["mean"] is not None]
        return {"parity": results, **({"probe_gap": max(gaps)} if gaps else {})}


def _probe_sample(token_ids: Sequence[int]) -> Sample:
    """Return a sequence as a sample whose tokens but the first are scored."""
    tokens = np.array(token_ids, np.int32)
    sample = blank_sample(len(tokens), len(tokens) - 1)
    return replace(
        sample, prompt_ids=tokens[:1], token_ids=tokens[1:], on_version=0 * sample.on_version
    )
