"""Parity: each rollout shows for every version that it computes what the learner computes.

At each publish the learner scores a fixed sequence under the weights that it publishes. A rollout
scores it once it has loaded them, and reports. Where the two differ by more than the limit nothing
that it samples counts, and the job pauses with words that name what the rollout holds. Every few
steps some of a step's tokens are compared as well, by the weights that sampled them: a temperature
or a KV cache shows on sampled tokens alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, NoReturn

import numpy as np
from protocol.messages import Notice, ParityReport, Probes, Task

from services.chassis.prompts import PromptError, UnknownToken
from services.chassis.renderer import PromptRenderer
from services.learner.attempt import Attempt, as_json
from services.learner.durable.progress import Progress
from services.learner.job.control import Control
from services.learner.training.batching import blank_sample
from services.learner.training.ranks import Team
from services.learner.training.samples import Measured, Sample

_TASKS = 8
_MOST_CHARS = 2000  # of a task, since every announcement carries them
_LENGTH = 97
# Of a dtype: the limit of the mean gap, at least and at most; between, a multiple of what the first
# reports had. Rounding of float32 differs most between models, but faults are far above it. That of
# the others is 2 and 7 times the rounding (2^-11, 2^-8) of logits that spread by `_SPREAD`.
_LIMITS = {"float32": (1e-5, 1e-3, 10), "float16": (4e-3, 1.4e-2, 3), "bfloat16": (3e-2, 0.11, 3)}
_SPREAD = 4.0
_LEAST_SPREAD = 0.25  # an entropy of float32 tells no smaller one
_HOT = 100.0
_FIRST = 3
LEAST_TOKENS = 100  # of fewer a mean says little


class Parity:
    """What the rollouts of one attempt have answered; `probes` are made when it begins."""

    def __init__(self, attempt: Attempt, progress: Progress, control: Control) -> None:
        self.attempt = attempt
        self.progress = progress
        self.control = control
        self.template: Probes | None = None  # without log-probs; none where no task can be read
        self._first: list[float] = []  # mean gaps of the first reports
        self._scale: float | None = None  # of logits' spread, by `_SPREAD`
        self._size = 1.0  # of log-probs of the probes, to which their gaps are relative
        self._taken: set[ParityReport] = set()  # those that statuses had at the last look
        self._news: dict[tuple[str | None, int], dict[str, Any]] = {}  # since the last step

    async def choose(self, prompts: PromptRenderer, tasks: Sequence[Task]) -> None:
        """Make the probes of the prompts of the first tasks.

        Raises:
            LimitExceeded: if the model's template or tokenizer takes too much.
            UnknownToken: if each prompt has a token that the model has no row for.
        """
        recipe = self.attempt.recipe.model
        read = (recipe.prompt_template, recipe.chat_template_options)
        length = min(_LENGTH, recipe.max_context - 1)
        asked: list[Task] = []
        lacking: UnknownToken | None = None
        tokens: list[int] = []
        for task in (Task(id=t.id, prompt=t.prompt, messages=t.messages) for t in tasks[:_TASKS]):
            try:
                if len(task.model_dump_json()) < _MOST_CHARS or not asked:
                    tokens += await prompts.render(task, *read)
                    asked.append(task)
            except UnknownToken as error:
                lacking = error
            except PromptError:
                pass  # of which the rollouts tell
        if lacking is not None and not asked:  # it is in the template
            raise lacking
        if tokens and length > 1:
            digest = await prompts.digest(asked, *read)
            ids = tuple(islice(cycle(tokens), length))
            given = {"rendered": digest, "logprobs": (), "most": self.most}
            self.template = Probes(tasks=tuple(asked), token_ids=ids, **given)

    @property
    def most(self) -> float:
        """The limit: the recipe's, or what the first reports had, within those of the dtype.

        Gaps of healthy models are as large as the rounding of their logits, which grows with how
        far these spread over the ids (a standard deviation): 3.5 times 2^-8 of it in bfloat16, of
        the probes of SmolLM2 and of the demo's model. So the limits grow with it as well.
        """
        least, most, factor = _LIMITS[self.attempt.recipe.model.dtype]
        if self.attempt.recipe.training.max_parity is not None:
            return self.attempt.recipe.training.max_parity
        scale = (self._scale or 1.0) / self._size
        if len(self._first) < _FIRST:
            return scale * most
        return min(scale * most, max(scale * least, factor * min(self._first)))

    async def score(self, team: Team, version: int) -> None:
        """Score the probes under the weights as they are, which are of this version."""
        if self.template is None:
            return
        scored = await team.score([_sample_of(self.template.token_ids)], 1.0)
        logprobs = scored.tokens.get("logprobs", np.array([np.nan]))
        if np.isfinite(logprobs).all():  # a loss that is not has words of its own
            self.progress.note_probes(version, logprobs.astype(float).round(7).tolist())
            if self._scale is None:
                await self._measure(team, logprobs)

    async def _measure(self, team: Team, logprobs: np.ndarray) -> None:
        """Find out how far logits spread: an entropy when hot is log(ids) - (spread / hot)² / 2."""
        assert self.template is not None
        scored = await team.score([_sample_of(self.template.token_ids)], _HOT)
        if (entropies := scored.tokens.get("entropies")) is not None:
            lack = max(0.0, math.log(team.num_ids or 1) - float(entropies.mean()))
            self._scale = max(_LEAST_SPREAD, _HOT * math.sqrt(2 * lack)) / _SPREAD
            self._size = max(1.0, float(np.abs(logprobs).mean()))

    def of(self, version: int) -> Probes | None:
        """The probes of a version that was scored, None if it was not."""
        known = {n: tuple(logprobs) for n, logprobs in self.progress.probes.items() if n <= version}
        if self.template is None or version not in known:
            return None
        told = {"logprobs": known.pop(version), "earlier": known, "most": self.most}
        return self.template.model_copy(update=told)

    async def watch_forever(self) -> NoReturn:
        """Consumes the rollouts' statuses; produces events, and a pause where one does not agree.

        Waits for: the next heartbeat. Unblocked by: time.
        """
        own = (self.attempt.job_id, self.attempt.number)
        while True:
            statuses = (await self.attempt.exchange.statuses()).values()
            reports = [report for status in statuses for report in status.parity]
            for report in reports:
                if (report.job_id, report.attempt) == own and report not in self._taken:
                    await self._take(report)
            self._taken = set(reports)
            await asyncio.sleep(self.control.service.deployment.heartbeat_s)

    async def _take(self, report: ParityReport) -> None:
        told = report.model_dump(include={"rollout", "version", "mean", "max", "most"})
        told["agrees"] = report.agrees
        self._news[report.rollout, report.version] = told
        if not report.agrees:
            words = f"{self._words(report)}; restart {report.rollout}, then resume the job"
            await self._stop(f"{report.rollout}:{report.version}", words, told)
        elif len(self._first) < _FIRST and report.mean is not None:
            self._first.append(report.mean)

    def _words(self, report: ParityReport) -> str:
        """Who holds what, and the likely cause."""
        who, at = report.rollout, f"the learner is at {report.version}"
        if not report.same_prompts:
            return (
                f"{who} reads the tasks' prompts as other tokens than the learner: it has another "
                "tokenizer or chat template, or other releases of transformers"
            )
        if report.holds is not None:
            is_base = report.holds == 0 and self.attempt.recipe.model.lora is not None
            why = "the adapter is not loaded" if is_base else "its engine took no newer weights"
            return f"{who} answers as version {report.holds}; {at}; {why}"
        gap = "not finite" if report.mean is None else f"{report.mean:.1e} on average"
        return (
            f"{who} answers as no version; {at}; the gap is {gap}, above {report.most:.1e}; its "
            "engine did not take all of the weights, has some in the wrong place (a layer, the "
            "head), or computes otherwise (kernels, how it decodes, another release of vLLM)"
        )

    async def check_sampled(self, measured: Measured, version: int, temperature: float) -> None:
        """Pause if the log-probs that tokens were sampled with are not those of their version.

        Rounding of logits counts more at a low temperature.
        """
        mean, tokens = measured.metrics.get("parity_mean"), measured.metrics.get("parity_tokens")
        if mean is None or not tokens or tokens < LEAST_TOKENS:
            return
        model, training = self.attempt.recipe.model, self.attempt.recipe.training
        most = training.max_parity or (self._scale or 1.0) * _LIMITS[model.dtype][1]
        largest, agrees = measured.metrics.get("parity_max"), mean * min(1.0, temperature) <= most
        row = {"rollout": None, "version": version, "mean": mean, "max": largest, "most": most}
        self._news[None, version] = row = {**row, "agrees": agrees}
        if agrees:
            return
        causes = ["the engine computes this model differently"]
        if temperature != 1:
            causes.append(f"temperature {temperature:g} is applied twice or not at all")
        if version > 0:
            causes.append("the KV cache is of other weights")
        words = (
            f"tokens sampled by version {version} have log-probs that differ from those of its "
            f"weights by {mean:.1e} on average, above {most:.1e}"
            f"{', though the probes agree' if self._first else ''}: {', or '.join(causes)}; see to "
            "the rollouts, then resume the job"
        )
        await self._stop(f"tokens:{version}", words, row)

    async def _stop(self, what: str, words: str, row: dict[str, Any]) -> None:
        event_id = f"parity:{self.attempt.number}:{what}"
        await self.attempt.say(
            event_id, words, level="warn", data=Notice(details={"parity": [as_json(row)]})
        )
        await self.control.pause(words)

    def told(self) -> dict[str, Any]:
        """What was compared since this was called last, for the event of a step."""
        rows, self._news = [*self._news.values()], {}
        gaps = [row["mean"] for row in rows if row["mean"] is not None]
        return {"parity": rows, **({"probe_gap": max(gaps)} if gaps else {})} if rows else {}


def _sample_of(ids: Sequence[int]) -> Sample:
    """A sequence as a sample, of which all tokens but the first are scored."""
    tokens, blank = np.array(ids, np.int32), blank_sample(len(ids), len(ids) - 1)
    own = {"prompt_ids": tokens[:1], "token_ids": tokens[1:]}
    return replace(blank, **own, on_version=0 * blank.on_version)
