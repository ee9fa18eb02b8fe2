"""A recipe out of a text, and what it asks for by arithmetic alone. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator

from protocol.recipe import Recipe, RecipeError, parse_recipe

from services.gateway.api.openai.body import find_problems

# It begins where a part does, and gives nothing back: so it takes linear time.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")


class RecipeTextError(ValueError):
    """A text that is no recipe; each line is ``field: what is wrong``."""


def read_recipe(text: str) -> Recipe:
    """The recipe in a text: JSON if it begins with a brace, else TOML.

    Raises:
        RecipeTextError: naming the place that is wrong.
    """
    try:
        if _LONG_KEY.search(text):  # a reader of TOML takes quadratic time for one
            raise RecipeTextError("text: a key has more than 16 parts with dots between them")
        is_json = text.lstrip().startswith("{")
        data = json.loads(text) if is_json else tomllib.loads(text.removeprefix("\ufeff"))
        if lines := find_problems(data):
            raise RecipeTextError("\n".join(lines))
        return parse_recipe(data)
    except json.JSONDecodeError as error:
        raise RecipeTextError(f"text: not valid JSON: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeTextError(f"text: not valid TOML: {error}") from error
    except RecursionError as error:
        raise RecipeTextError("text: nested too deep") from error
    except (RecipeError, RecipeTextError) as error:
        raise RecipeTextError(str(error)) from error
    except ValueError as error:  # a number of thousands of digits
        raise RecipeTextError(f"text: {error}") from error


def arithmetic(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What a job asks for, as names and products."""
    if recipe.client is not None:
        return
    training, rollout = recipe.training, recipe.rollout
    per_step = training.groups_per_step * rollout.group_size
    responses, longest = training.steps * per_step, recipe.longest_response
    yield "responses of a step", f"{training.groups_per_step} × {rollout.group_size} = {per_step:,}"
    yield "responses in all", f"{training.steps:,} steps × {per_step:,} = {responses:,}"
    yield "tokens, at most", f"{responses:,} × {longest:,} = {responses * longest:,}"
    updates = training.updates_per_batch
    yield "updates", f"{training.steps:,} × {updates} = {training.steps * updates:,}"
    yield "groups in flight", f"{recipe.groups_in_flight:,} at most"
    yield "checkpoints", f"every {training.checkpoint_every} steps"
    if recipe.num_pretrain_steps:
        yield "critic alone", f"{recipe.pretrain_steps_in_words} steps before the first"
    if recipe.evaluation is not None:
        yield "evaluations", _evaluations(recipe)


def _evaluations(recipe: Recipe) -> str:
    evaluation, steps = recipe.evaluation, recipe.training.steps
    assert evaluation is not None
    times = -(-steps // (evaluation.every or steps)) + 1
    tasks = f"{evaluation.tasks:,}" if evaluation.tasks else "all"
    return f"{times} × {tasks} held-out tasks × {evaluation.samples} responses"
