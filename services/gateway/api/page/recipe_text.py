"""A recipe that was typed or pasted as text, and its numbers."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator

from protocol.recipe import Recipe, parse_recipe
from protocol.recipe_files import RecipeError, explain_toml
from protocol.tasks import explain_json

from services.gateway.api.openai.body import find_problems

# The key has no start inside a part, and no backtracking: matching takes linear time.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")


class RecipeTextError(ValueError):
    """A text that is no recipe; each line is ``field: problem``."""


def read_recipe(text: str) -> Recipe:
    """Parse a text: JSON if it begins with a brace, else TOML.

    Raises:
        RecipeTextError: naming the wrong field.
    """
    try:
        if _LONG_KEY.search(text):  # tomllib takes quadratic time for a long key
            raise RecipeTextError("text: a key must have at most 16 parts with dots between them")
        is_json = text.lstrip().startswith("{")
        data = json.loads(text) if is_json else tomllib.loads(text.removeprefix("\ufeff"))
        lines = find_problems(data)
        if lines:
            raise RecipeTextError("\n".join(lines))
        return parse_recipe(data)
    except json.JSONDecodeError as error:
        raise RecipeTextError(f"text: {explain_json(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeTextError(f"text: {explain_toml(text, error)}") from error
    except RecursionError as error:
        raise RecipeTextError("text: nested too deeply") from error
    except (RecipeError, RecipeTextError) as error:
        raise RecipeTextError(str(error)) from error
    except ValueError as error:  # such as a number of thousands of digits
        raise RecipeTextError(f"text: {error}") from error


def plan_rows(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield names and products of the numbers of a job."""
    if recipe.client is not None:
        return
    training = recipe.training
    steps = training.steps
    if not recipe.only_evaluates:
        yield from _training_rows(recipe)
    if recipe.evaluation is not None:
        evaluation = recipe.evaluation
        times = -(-steps // (evaluation.every or steps or 1)) + 1
        tasks = f"{evaluation.tasks:,}" if evaluation.tasks else "all"
        yield "evaluations", f"{times} × {tasks} held-out tasks × {evaluation.samples} responses"


def _training_rows(recipe: Recipe) -> Iterator[tuple[str, str]]:
    training = recipe.training
    steps = training.steps
    groups = training.groups_per_step
    group_size = recipe.rollout.group_size
    per_step = groups * group_size
    responses = steps * per_step
    max_tokens = recipe.longest_response
    updates = training.updates_per_batch
    yield "responses of a step", f"{groups} × {group_size} = {per_step:,}"
    yield "responses in all", f"{steps:,} steps × {per_step:,} = {responses:,}"
    yield "tokens, at most", f"{responses:,} × {max_tokens:,} = {responses * max_tokens:,}"
    yield "updates", f"{steps:,} × {updates} = {steps * updates:,}"
    yield "groups in flight", f"{recipe.groups_in_flight:,} at most"
    yield "checkpoints", f"every {training.checkpoint_every} steps"
    if recipe.num_pretrain_steps:
        yield "critic alone", f"{recipe.pretrain_steps_in_words} steps before the first"
