"""Refusals of jobs that cannot work in this deployment or with this model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from protocol.capacity import worst_case_bytes, worst_case_in_words
from protocol.exchange import Exchange
from protocol.exchange.connection import Memory
from protocol.limits import find_problems
from protocol.recipe import Recipe
from protocol.rewards import Check, LabelModel, Reward, ScoreModel, StringCheck, TextSimilarity

from services.gateway.core.files.store import StoredFile
from services.gateway.core.models.folders import ModelFacts
from services.gateway.errors import Problem, await_exchange, from_lines, wrong

MAX_MEMORY_SHARE = 0.75  # of maxmemory: the running job needs the remainder
_FORMULA_FIELDS = ("advantage", "objective", "aggregation", "correction", "divergence")
_ITEM_FIELD = re.compile(r"\{\{\s*item\.(?:metadata\.)?(\w+)")
_COLUMNS_OF_EVERY_TASK = {"id", "prompt", "metadata"}  # a template reads messages as the prompt


def check_recipe(
    recipe: Recipe,
    facts: ModelFacts,
    *,
    has_extensions: bool = False,
    message_fields: Sequence[str] = (),
) -> None:
    """Refuse a recipe that no worker of this deployment can run.

    Args:
        has_extensions: whether the deployment may have formulas of its own.
        message_fields: the request's fields that name files whose tasks have messages as prompts.
    """
    if recipe.client is not None:
        raise wrong("recipe.client", "only the Tinker SDK's jobs have this table; remove it")
    lines = [f"recipe.{problem}" for problem in find_problems(recipe)]
    if not has_extensions:
        lines += _formula_problems(recipe)
    lines += _prompt_problems(recipe, facts, message_fields)
    if lines:
        raise from_lines(lines, code="cannot_work")


def _formula_problems(recipe: Recipe) -> Iterator[str]:
    for field in _FORMULA_FIELDS:
        name = getattr(recipe.algorithm, field)
        if "." in name:
            yield (
                f"recipe.algorithm.{field}: {name!r} is unknown here; name the module that adds it "
                "in WEIR_EXTENSIONS where the gateway and the learner run"
            )


def _prompt_problems(
    recipe: Recipe, facts: ModelFacts, message_fields: Sequence[str]
) -> Iterator[str]:
    model = recipe.model
    if facts.context is not None and model.max_context > facts.context:
        yield (
            f"recipe.model.max_context: the model reads at most {facts.context} tokens, got "
            f"{model.max_context}; lower it"
        )
    if model.prompt_template is None and facts.has_chat_template is False:
        yield (
            "recipe.model.prompt_template: the model has no chat template; set it to '{prompt}', "
            "or add chat_template.jinja to the model's folder"
        )
    elif model.prompt_template and message_fields and facts.has_chat_template is not False:
        yield (
            f"recipe.model.prompt_template: the tasks of {' and '.join(message_fields)} have "
            "messages, which need the model's chat template; remove it"
        )


async def check_graders(exchange: Exchange, reward: Reward, outcome_field: str | None) -> None:
    """Refuse a reward that no running grader can compute; without a grader refuse nothing.

    ``outcome_field`` is the request's field of the outcome, if that is not in the recipe.
    """
    statuses = await await_exchange(exchange.statuses())
    graders = [s.capabilities for s in statuses.values() if s.capabilities is not None]
    checks = [
        (outcome_field or f"recipe.reward.outcome.{place}", check)
        for place, check in enumerate(reward.outcome)
    ]
    for place, check in enumerate(reward.process):
        checks.append((f"recipe.reward.process.{place}", check))
    lines = []
    for field, check in checks:
        reasons = [grader.find_missing(check) for grader in graders]
        if reasons and all(reasons):
            lines.append(f"{field}: {reasons[0]}")
    if lines:
        raise from_lines(lines, code="invalid_grader")


def check_free_memory(memory: Memory) -> None:
    """Refuse a job, with 507, if Redis is nearly full."""
    if memory.limit is None or memory.used <= MAX_MEMORY_SHARE * memory.limit:
        return
    raise Problem(
        507,
        f"Redis uses {memory.used:,} of its maxmemory of {memory.limit:,} bytes; the remainder is "
        "for the running job. DELETE jobs that have ended, cancel queued ones, or raise maxmemory",
        code="no_room",
        headers={"x-should-retry": "false"},
    )


def check_memory_need(recipe: Recipe, num_held_out: Mapping[str, int], memory: Memory) -> None:
    """Refuse a job that can fill half of Redis; without a limit, the whole machine.

    ``num_held_out`` has the tasks of each evaluation, by the evaluation's name.
    """
    needed = worst_case_bytes(recipe, num_held_out)
    if memory.limit is not None:
        available = memory.limit // 2
        meaning = f"half of its maxmemory of {memory.limit:,}"
    else:
        available = memory.machine or needed
        meaning = f"the {available:,} of its machine"
    if needed <= available:
        return
    reason = (
        f"the job can hold {needed:,} bytes in Redis at once, more than {meaning}: "
        f"{worst_case_in_words(recipe, num_held_out)}. Lower one of them, or give Redis more"
    )
    raise wrong("recipe.rollout", reason, code="too_large")


def check_columns(recipe: Recipe, stored: StoredFile, field: str) -> None:
    """Refuse a job if more of its tasks lack a grader's column than may be ungradable."""
    if stored.columns is None:
        return
    for check in (*recipe.reward.outcome, *recipe.reward.process):
        for column in sorted(set(_required_columns(check)) - _COLUMNS_OF_EVERY_TASK):
            count = stored.columns.get(column, 0)
            if stored.tasks - count > recipe.reward.max_ungradable * stored.tasks:
                reason = (
                    f"only {count} of {stored.tasks} tasks have {column!r}, which the grader "
                    f"{check.label!r} needs; add it to the tasks, or change the grader"
                )
                raise wrong(field, reason, code="missing_column")


def _required_columns(check: Check) -> Iterator[str]:
    if check.if_ungradable == "leave_out":
        return
    if check.verifier == "math_answer":
        yield "answer"
    for _, template in find_templates(check):
        yield from _ITEM_FIELD.findall(template)


def find_templates(check: Check) -> Iterator[tuple[str, str]]:
    """Yield the field and the text of each template of a check."""
    if isinstance(check, StringCheck | TextSimilarity):
        yield "input", check.input
        yield "reference", check.reference
    if isinstance(check, ScoreModel | LabelModel):
        for place, message in enumerate(check.input):
            yield f"input.{place}.content", message.content
