"""OpenAI's graders, ``method.reinforcement.grader``, as the reward of a recipe.

A grader is a check of the recipe with ``type`` for its verifier. A setting that a recipe cannot
hold is refused, with a remedy.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from protocol.recipe_files import explain
from protocol.rewards import Check, PythonSource, Reward
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

from services.gateway.api.openai.body import Part
from services.gateway.core.jobs.refusals import find_templates
from services.gateway.errors import Problem, from_lines

MAX_GRADERS = 20
MAX_PARSED_CHARS = 65_536  # of Python; parsing more would delay all other requests
MAX_TEMPLATE_CHARS = 100_000
MAX_QUOTED_CHARS = 60
# The fields of each type.
_FIELDS: Mapping[str, set[str]] = {
    "string_check": {"input", "reference", "operation"},
    "text_similarity": {"input", "reference", "evaluation_metric"},
    "score_model": {"model", "input", "range", "sampling_params"},
    "label_model": {"model", "input", "labels", "passing_labels"},
    "python": {"source", "image_tag"},
    "math_answer": set(),
    "equation_steps": set(),
    "model_judge": set(),
}
# The recipe's names of sampling_params. The SDK and the pages of the API spell one in two ways.
_SAMPLING_FIELDS = {
    "seed": "seed",
    "temperature": "temperature",
    "reasoning_effort": "reasoning_effort",
    "max_completions_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_REMEDIES = {
    "endpoint": "Weir calls no endpoints of clients; use score_model, which asks a judge of this "
    "deployment",
    "cosine": "it needs an embedding model; use score_model",
    "meteor": "it needs a dictionary of synonyms; use rouge_l or gleu",
}
_UNKNOWN_KEY = "unknown key; remove it or check its spelling"
_REFERENCE = re.compile(r"\{\{([^{}]*)\}\}")  # like the grader's; takes linear time
_PATH = r"(?:\.\w+|\[\d+\])"  # a key, or the index of a list
_KNOWN_REFERENCE = re.compile(
    rf"\s*(?:sample\.output_text|sample\.output_json{_PATH}*|item\.\w+{_PATH}*)\s*"
)
_CHECK_FIELD = re.compile(r"outcome\.(\d+)\.?(.*)")


def _check_type(grader_type: object) -> object:
    remedy = _REMEDIES.get(str(grader_type))
    if remedy is not None:
        raise ValueError(f"{grader_type!r} is not supported: {remedy}")
    if str(grader_type) not in _FIELDS:
        raise ValueError(f"must be multi or one of {', '.join(_FIELDS)}, got {grader_type!r}")
    return grader_type


class Grader(Part):
    """One grader as it was sent, with the further fields of its type."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, BeforeValidator(_check_type)]
    name: str | None = None


class MultiGrader(Part):
    """Several graders by name, and a formula of their grades."""

    type: str
    name: str | None = None
    graders: dict[str, Grader] = Field(min_length=1, max_length=MAX_GRADERS)
    calculate_output: str


def _tag(grader: Any) -> str:
    is_table = isinstance(grader, Mapping)
    grader_type = grader.get("type") if is_table else getattr(grader, "type", None)
    return "<multi>" if grader_type == "multi" else "<one>"


AnyGrader: TypeAlias = Annotated[
    Annotated[Grader, Tag("<one>")] | Annotated[MultiGrader, Tag("<multi>")], Discriminator(_tag)
]


def build_reward(grader: AnyGrader, path: str) -> Reward:
    """Return a reward with the grader's checks as outcome, and the formula of a multi.

    Raises:
        Problem: 400 naming each wrong field below ``path``, the grader's place in the body.
    """
    formula = None
    if isinstance(grader, MultiGrader):
        formula = grader.calculate_output
        paths = [f"{path}.graders.{name}" for name in grader.graders]
        tables = [
            {**_check_table(part, place), "name": name}
            for (name, part), place in zip(grader.graders.items(), paths, strict=True)
        ]
    else:
        paths = [path]
        tables = [_check_table(grader, path)]
    try:
        reward = Reward.model_validate({"outcome": tables, "formula": formula})
    except ValidationError as error:
        lines = explain(error, whole=f"{path}.calculate_output").splitlines()
        # Invalid checks also make the outcome too short.
        lines = [_restore_field(line, paths) for line in lines if not line.startswith("outcome:")]
        raise from_lines(lines, code="invalid_grader") from error
    _check_texts(dict(zip(paths, reward.outcome, strict=True)))
    return reward


def _check_table(grader: Grader, path: str) -> dict[str, Any]:
    """Return a check of a recipe as plain data."""
    fields = {
        name: value for name, value in (grader.model_extra or {}).items() if value is not None
    }
    unknown = [name for name in fields if name not in _FIELDS[grader.type]]
    if unknown:
        raise _invalid(f"{path}.{unknown[0]}", _UNKNOWN_KEY)
    metric = str(fields.get("evaluation_metric"))
    if metric in _REMEDIES:
        reason = f"{metric!r} is not supported: {_REMEDIES[metric]}"
        raise _invalid(f"{path}.evaluation_metric", reason)
    fields.pop("image_tag", None)  # there is only one image
    fields |= _sampling_table(fields.pop("sampling_params", {}), f"{path}.sampling_params")
    if isinstance(fields.get("input"), list):
        messages = enumerate(fields["input"])
        fields["input"] = [
            _message(message, f"{path}.input.{place}") for place, message in messages
        ]
    return {**fields, "verifier": grader.type}


def _sampling_table(params: Any, path: str) -> dict[str, Any]:
    if not isinstance(params, Mapping):
        raise _invalid(path, "must be an object")
    if params.get("top_p") not in (None, 1):
        reason = "top-p sampling is not supported for judges; remove it, or set temperature"
        raise _invalid(f"{path}.top_p", reason)
    unknown = params.keys() - _SAMPLING_FIELDS.keys() - {"top_p"}
    if unknown:
        raise _invalid(f"{path}.{min(unknown)}", _UNKNOWN_KEY)
    names = [name for name in _SAMPLING_FIELDS if params.get(name) is not None]
    return {_SAMPLING_FIELDS[name]: params[name] for name in names}


def _message(message: Any, path: str) -> Any:
    """Join the content of a message, which may be sent as blocks of text, to one text."""
    if not isinstance(message, Mapping) or "content" not in message:
        return message
    content = message["content"]
    blocks = content if isinstance(content, list) else [content]
    texts = [_block_text(block, f"{path}.content") for block in blocks]
    fields = {**message, "content": "".join(texts)}
    if fields.get("type") == "message":
        del fields["type"]
    return fields


def _block_text(block: Any, path: str) -> str:
    if isinstance(block, Mapping) and block.get("type") in ("input_text", "output_text"):
        block = block.get("text")
    if not isinstance(block, str):
        raise _invalid(path, "must be text: a string, or blocks of type 'input_text'")
    return block


def _restore_field(line: str, paths: list[str]) -> str:
    """Write the grader's name of a field instead of the recipe's."""
    field, _, reason = line.partition(":")
    match = _CHECK_FIELD.fullmatch(field)
    if match is None:
        return line
    name = match[2]
    for param, sampling_field in _SAMPLING_FIELDS.items():
        if name == sampling_field:
            name = f"sampling_params.{param}"
            break
    return f"{paths[int(match[1])]}.{name}".rstrip(".") + f":{reason}"


def _check_texts(checks: Mapping[str, Check]) -> None:
    for path, check in checks.items():
        for field, template in find_templates(check):
            problem = _template_problem(template)
            if problem is not None:
                raise _invalid(f"{path}.{field}", problem)
    sources = {path: c.source for path, c in checks.items() if isinstance(c, PythonSource)}
    if sum(map(len, sources.values())) > MAX_PARSED_CHARS:
        return  # the grader reports problems
    for path, source in sources.items():
        problem = _source_problem(source)
        if problem is not None:
            raise _invalid(f"{path}.source", problem)


def _template_problem(template: str) -> str | None:
    if len(template) > MAX_TEMPLATE_CHARS:
        return f"must have at most {MAX_TEMPLATE_CHARS} characters, got {len(template)}"
    for reference in _REFERENCE.findall(template):
        if not _KNOWN_REFERENCE.fullmatch(reference):
            quoted = reference[:MAX_QUOTED_CHARS]
            return f"{{{{{quoted}}}}} is unknown; {_reference_remedy(reference)}"
    _, opening, remainder = _REFERENCE.sub("…", template).partition("{{")
    if not opening:
        return None
    return (
        f"'{{{{{remainder[:MAX_QUOTED_CHARS]}' names no field; close it with }}}}, or write "
        "'{ {' for braces that are text"
    )


def _reference_remedy(reference: str) -> str:
    if "output_tools" in reference:
        return "a response is text: use {{sample.output_text}} or {{sample.output_json}}"
    return (
        "use {{sample.output_text}}, {{sample.output_json.NAME}}, or {{item.NAME}} with a column "
        "of the data set, such as {{item.prompt}}, {{item.answer}} or {{item.solution}}"
    )


def _source_problem(source: str) -> str | None:
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is not Python: {str(error) or 'nested too deeply'}"
    functions = [node.name for node in statements if isinstance(node, ast.FunctionDef)]
    if "grade" not in functions:
        return "must define grade(sample, item), which returns a number"
    return None


def _invalid(field: str, reason: str) -> Problem:
    return from_lines([f"{field}: {reason}"], code="invalid_grader")
