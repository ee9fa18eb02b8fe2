"""What cannot work in this deployment, or with this model, told before anything is queued. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from protocol.capacity import worst_case_bytes, worst_case_in_words
from protocol.exchange.connection import Memory
from protocol.recipe import Recipe, Sampling
from protocol.rewards import Check

from services.gateway.api.openai.graders import templates_of
from services.gateway.core.files.store import StoredFile
from services.gateway.core.models.folders import ModelFacts
from services.gateway.errors import Problem, from_lines, wrong

# What vLLM takes: it refuses more, and silently raises a lower temperature.
_TEMPERATURES = (0.01, 2.0)
_LEARNING_RATES = (1e-12, 1.0)
_MOST_TOKENS = 2**53  # scripts in Redis, metrics and browsers count no further
_FORMULAS = ("advantage", "objective", "aggregation", "correction", "divergence")
_FULL = 0.75  # of maxmemory: the rest is for the work of the job that runs
_NAMED = re.compile(r"\{\{\s*item\.(?:metadata\.)?(\w+)")
_ALWAYS = {"id", "prompt", "metadata"}  # a template sees messages as the prompt


def check(
    recipe: Recipe,
    facts: ModelFacts,
    *,
    has_formulas: bool = False,
    with_messages: Sequence[str] = (),
) -> None:
    """Refuse a recipe that no worker here could work on.

    Args:
        has_formulas: whether the deployment has some of its own.
        with_messages: the fields that name files whose tasks have messages for a prompt.
    """
    if recipe.client is not None:
        raise wrong("recipe.client", "is of the jobs that the SDK of Tinker makes; remove it")
    lines = [
        *_numbers(recipe),
        *([] if has_formulas else _formulas(recipe)),
        *_prompts(recipe, facts, with_messages),
    ]
    if lines:
        raise from_lines(lines, code="cannot_work")


def _numbers(recipe: Recipe) -> Iterator[str]:
    yield from _total("training.steps", recipe.training.steps, recipe)
    yield from _total("critic.pretrain_steps", recipe.num_pretrain_steps, recipe)
    yield from _sampling("recipe.rollout", recipe.rollout.sampling)
    for name, evaluation in recipe.evaluations.items():
        table = f"recipe.evaluation.others.{name}" if name else "recipe.evaluation"
        if evaluation.sampling is not None:
            yield from _sampling(table, evaluation.sampling)
    for table in (recipe, recipe.critic):
        lowest, highest = _LEARNING_RATES
        if table is not None and not lowest <= table.optimizer.learning_rate <= highest:
            place = "recipe.optimizer" if table is recipe else "recipe.critic.optimizer"
            yield (
                f"{place}.learning_rate: {table.optimizer.learning_rate:g} would ruin the weights, "
                f"or change none; give {lowest:g} to {highest:g}, and rather 1e-6"
            )


def _total(place: str, steps: int, recipe: Recipe) -> Iterator[str]:
    factors = {
        place: steps,
        "training.groups_per_step": recipe.training.groups_per_step,
        "rollout.group_size": recipe.rollout.group_size,
        "model.max_context": recipe.model.max_context,
    }
    if math.prod(factors.values()) > _MOST_TOKENS:
        largest = max(factors, key=factors.__getitem__)
        words = " x ".join(f"{name} {number:,}" for name, number in factors.items())
        yield f"recipe.{largest}: lower it; {words} may be at most {_MOST_TOKENS:,} tokens"


def _sampling(place: str, sampling: Sampling) -> Iterator[str]:
    lowest, highest = _TEMPERATURES
    if not lowest <= sampling.temperature <= highest:
        yield (
            f"{place}.sampling.temperature: the engine samples at {lowest:g} to {highest:g}, not "
            f"at {sampling.temperature:g}"
        )


def _formulas(recipe: Recipe) -> Iterator[str]:
    for field in _FORMULAS:
        name = getattr(recipe.algorithm, field)
        if "." in name:
            yield (
                f"recipe.algorithm.{field}: nobody here has {name!r}; name the module that adds it "
                "in WEIR_EXTENSIONS where the gateway and the learner run"
            )


def _prompts(recipe: Recipe, facts: ModelFacts, with_messages: Sequence[str]) -> Iterator[str]:
    model = recipe.model
    if facts.context is not None and model.max_context > facts.context:
        yield (
            f"recipe.model.max_context: the model reads {facts.context} tokens, not "
            f"{model.max_context}; lower it"
        )
    if model.prompt_template is None and facts.has_chat_template is False:
        yield (
            "recipe.model.prompt_template: the model has no chat template; set it to '{prompt}', "
            "or add chat_template.jinja to the model's folder"
        )
    elif model.prompt_template and with_messages and facts.has_chat_template is not False:
        yield (
            f"recipe.model.prompt_template: the tasks of {' and '.join(with_messages)} have "
            "messages; leave it out, and the model's chat template takes them"
        )


def check_room(memory: Memory) -> None:
    """Refuse a job, with 507, while Redis is nearly full."""
    if memory.limit is None or memory.used <= _FULL * memory.limit:
        return
    raise Problem(
        507,
        f"Redis holds {memory.used:,} of its maxmemory of {memory.limit:,} bytes; the rest is kept "
        "for the work of the job that runs. DELETE jobs that have ended, cancel some that are "
        "queued, or raise maxmemory",
        code="no_room",
        headers={"x-should-retry": "false"},
    )


def check_memory(recipe: Recipe, held_out: Mapping[str, int], memory: Memory) -> None:
    """Refuse a job that can fill more than half of Redis; without a limit, more than its machine.

    ``held_out`` has the tasks in the file of each of its evaluations, by the evaluation's name.
    """
    needed = worst_case_bytes(recipe, held_out)
    if memory.limit is not None:
        most, whose = memory.limit // 2, f"half of its maxmemory of {memory.limit:,}"
    else:
        most = memory.machine or needed
        whose = f"the {most:,} that its machine has"
    if needed <= most:
        return
    why = (
        f"the job can hold {needed:,} bytes in Redis at once, more than {whose}: "
        f"{worst_case_in_words(recipe, held_out)}. Lower one of them, or give Redis more"
    )
    raise wrong("recipe.rollout", why, code="too_large")


def refuse_missing_columns(recipe: Recipe, stored: StoredFile, param: str) -> None:
    """Refuse a job if more of its tasks lack a grader's column than may be ungradable."""
    if stored.columns is None:
        return
    for check in (*recipe.reward.outcome, *recipe.reward.process):
        for column in sorted(set(_named(check)) - _ALWAYS):
            have = stored.columns.get(column, 0)
            if stored.tasks - have > recipe.reward.max_ungradable * stored.tasks:
                why = (
                    f"{have} of {stored.tasks} tasks have {column!r}, which the grader "
                    f"{check.label!r} needs of each; add it to the tasks, or change the grader"
                )
                raise wrong(param, why, code="missing_column")


def _named(check: Check) -> Iterator[str]:
    """The columns without which a check cannot grade a task."""
    if check.if_ungradable == "leave_out":
        return
    if check.verifier == "math_answer":
        yield "answer"
    for _, template in templates_of(check):
        yield from _NAMED.findall(template)
