"""OpenAI's graders, ``method.reinforcement.grader``, as the checks of a recipe's reward.

Only what a recipe can say is taken; everything else is refused with what to use instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from protocol.exchange import Exchange
from protocol.messages import Capabilities
from protocol.recipe import explain
from protocol.rewards import (
    Check,
    LabelModel,
    MathAnswer,
    ModelJudge,
    PythonSource,
    Reward,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

from services.gateway.errors import Problem, from_lines, in_time
from services.gateway.openai.body import Body, Part

_CHECKS: Mapping[str, tuple[type[Check], set[str]]] = {  # by type, with the fields it may have
    "string_check": (StringCheck, {"input", "reference", "operation"}),
    "text_similarity": (TextSimilarity, {"input", "reference", "evaluation_metric"}),
    "score_model": (ScoreModel, {"model", "input", "range", "sampling_params"}),
    "label_model": (LabelModel, {"model", "input", "labels", "passing_labels"}),
    "python": (PythonSource, {"source", "image_tag"}),
    "math_answer": (MathAnswer, set()),
    "equation_steps": (Check, set()),
    "model_judge": (ModelJudge, set()),
}
_PARAMS = {  # by the recipe's names; the SDK and the pages of the API spell one in two ways
    "seed": "seed",
    "temperature": "temperature",
    "reasoning_effort": "reasoning_effort",
    "max_completions_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_REMEDIES = {
    "endpoint": "no endpoint of a client is called; use score_model, which asks a judge of this "
    "deployment",
    "cosine": "it needs a model of embeddings; use score_model",
    "meteor": "it needs a dictionary of synonyms; use rouge_l or gleu",
}
_MAX_PARSED_CHARS = 65_536  # of a body: who parses more keeps everybody else waiting
_MAX_GRADERS = 20
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")  # as the grader reads it; in time linear in the text
_PATH = r"(?:\.\w+|\[\d+\])"  # a key, or the number of an entry of a list
_KNOWN_PLACE = re.compile(
    rf"\s*(?:sample\.output_text|sample\.output_json{_PATH}*|item\.\w+{_PATH}*)\s*"
)
_MAX_CHARS = 100_000
_SHOWN_CHARS = 60  # of what is wrong


def _known_type(kind: object) -> object:
    if remedy := _REMEDIES.get(str(kind)):
        raise ValueError(f"{kind!r} is not supported: {remedy}")
    if str(kind) not in _CHECKS:
        raise ValueError(f"{kind!r} is none of {', '.join(_CHECKS)}, nor a multi of them")
    return kind


class Grader(Part):
    """One grader as it was sent: its further fields are those of its type."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, BeforeValidator(_known_type)]
    name: str | None = None


class MultiGrader(Part):
    """Several graders by name, and what is reckoned of their grades."""

    type: str
    name: str | None = None
    graders: dict[str, Grader] = Field(min_length=1, max_length=_MAX_GRADERS)
    calculate_output: str


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "<multi>" if kind == "multi" else "<one>"


AnyGrader: TypeAlias = Annotated[
    Annotated[Grader, Tag("<one>")] | Annotated[MultiGrader, Tag("<multi>")], Discriminator(_tag)
]


class GraderToValidate(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/validate``."""

    grader: AnyGrader


def outcome_of(grader: AnyGrader, path: str) -> dict[str, Any]:
    """A reward's ``outcome`` that grades as the grader says, and its ``formula`` if it has one.

    ``path`` is the grader's place in the body.

    Raises:
        Problem: 400 naming each wrong field below ``path``.
    """
    if not isinstance(grader, MultiGrader):
        checks = {path: _check(grader, path, None)}
        _refuse_wrong_texts(checks)
        return {"outcome": tuple(checks.values())}
    places = {name: f"{path}.graders.{name}" for name in grader.graders}
    checks = {places[name]: _check(grader.graders[name], places[name], name) for name in places}
    _refuse_wrong_texts(checks)
    outcome = {"outcome": tuple(checks.values()), "formula": grader.calculate_output}
    try:
        Reward.model_validate(outcome)
    except ValidationError as error:
        lines = explain(error, whole=f"{path}.calculate_output").splitlines()
        raise from_lines(lines, code="invalid_grader") from error
    return outcome


def _check(grader: Grader, path: str, name: str | None) -> Check:
    """The check of a recipe that a grader is."""
    kind, known = _CHECKS[grader.type]
    given = {key: value for key, value in (grader.model_extra or {}).items() if value is not None}
    if unknown := [key for key in given if key not in known]:
        raise _problem(f"{path}.{unknown[0]}", "unknown key; remove it or check its spelling")
    metric = given.get("evaluation_metric")
    if remedy := _REMEDIES.get(str(metric)):
        raise _problem(f"{path}.evaluation_metric", f"{metric!r} is not supported: {remedy}")
    given.pop("image_tag", None)  # there is one image
    given |= _sampling(given.pop("sampling_params", {}), f"{path}.sampling_params")
    if isinstance(messages := given.get("input"), list):
        given["input"] = [_turn(turn, f"{path}.input.{n}") for n, turn in enumerate(messages)]
    try:
        return kind.model_validate({**given, "verifier": grader.type, "name": name})
    except ValidationError as error:
        lines = (_below(path, line) for line in explain(error, whole=path).splitlines())
        raise from_lines(list(lines), code="invalid_grader") from error


def _sampling(given: Any, path: str) -> dict[str, Any]:
    """How a judge's model is asked, by the recipe's names."""
    if not isinstance(given, Mapping):
        raise _problem(path, "must be an object")
    if given.get("top_p") not in (None, 1):
        problem = "the judge's distribution is not cut; leave it out, or set temperature"
        raise _problem(f"{path}.top_p", problem)
    if unknown := given.keys() - _PARAMS.keys() - {"top_p"}:
        raise _problem(f"{path}.{min(unknown)}", "unknown key; remove it or check its spelling")
    return {_PARAMS[key]: given[key] for key in _PARAMS if given.get(key) is not None}


def _turn(message: Any, path: str) -> Any:
    """A message whose content is one text, which may be sent as blocks of text."""
    if not isinstance(message, Mapping) or "content" not in message:
        return message
    content = message["content"]
    texts = [_text(block, path) for block in (content if isinstance(content, list) else [content])]
    others = {key: value for key, value in message.items() if (key, value) != ("type", "message")}
    return {**others, "content": "".join(texts)}


def _text(block: Any, path: str) -> str:
    if isinstance(block, Mapping) and block.get("type") in ("input_text", "output_text"):
        block = block.get("text")
    if not isinstance(block, str):
        problem = "only text can be judged; give a string, or blocks of type 'input_text'"
        raise _problem(f"{path}.content", problem)
    return block


def _below(path: str, line: str) -> str:
    """A problem of a check under the grader's own name for the field."""
    if line.startswith(path):
        return line
    field, _, text = line.partition(":")
    param = next((param for param, name in _PARAMS.items() if name == field), None)
    return f"{path}.{f'sampling_params.{param}' if param else field}:{text}"


def _refuse_wrong_texts(checks: Mapping[str, Check]) -> None:
    """Refuse templates that no grader can fill in, and code that is none."""
    for path, check in checks.items():
        for field, template in templates_of(check):
            if wrong := _wrong_in_template(template):
                raise _problem(f"{path}.{field}", wrong)
    sources = {path: c.source for path, c in checks.items() if isinstance(c, PythonSource)}
    if sum(map(len, sources.values())) > _MAX_PARSED_CHARS:
        return  # the grader tells
    for path, source in sources.items():
        if wrong := _wrong_in(source):
            raise _problem(f"{path}.source", wrong)


def templates_of(check: Check) -> Iterator[tuple[str, str]]:
    """The templates of a check, each with its field."""
    if isinstance(check, StringCheck | TextSimilarity):
        yield from (("input", check.input), ("reference", check.reference))
    if isinstance(check, ScoreModel | LabelModel):
        yield from ((f"input.{n}.content", turn.content) for n, turn in enumerate(check.input))


def _wrong_in_template(text: str) -> str | None:
    if len(text) > _MAX_CHARS:
        return f"holds {len(text)} characters; shorten it to {_MAX_CHARS}"
    for place in _PLACE.findall(text):
        if not _KNOWN_PLACE.fullmatch(place):
            return f"{{{{{place[:_SHOWN_CHARS]}}}}} is not known here; {_instead_of(place)}"
    _, opened, behind = _PLACE.sub("…", text).partition("{{")
    if not opened:
        return None
    return (
        f"'{{{{{behind[:_SHOWN_CHARS]}' names no field; close it with }}}}, or write '{{ {{' "
        "for braces that are text"
    )


def _instead_of(place: str) -> str:
    if "output_tools" in place:
        return "a response is text: use {{sample.output_text}} or {{sample.output_json}}"
    return (
        "use {{sample.output_text}}, {{sample.output_json.NAME}}, or {{item.NAME}} with a column "
        "of the data set, such as {{item.prompt}}, {{item.answer}} or {{item.solution}}"
    )


def _wrong_in(source: str) -> str | None:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is not Python: {str(error) or 'nested too deeply'}"
    if not any(isinstance(part, ast.FunctionDef) and part.name == "grade" for part in body):
        return "has no function grade; define grade(sample, item), a number"
    return None


def _problem(field: str, text: str) -> Problem:
    return from_lines([f"{field}: {text}"], code="invalid_grader")


# ---------------------------------------------------------------------- what graders offer


async def refuse_what_graders_lack(exchange: Exchange, reward: Reward, grader: str | None) -> None:
    """Refuse a reward that no grader that runs could give; while none runs, nothing is refused.

    ``grader`` is the place in the body of the grader that became the outcome, if there is one.

    Raises:
        Problem: 400 naming the field, what the graders lack, and the remedy; 503 without Redis.
    """
    statuses = await in_time(exchange.statuses())
    told = [status.capabilities for status in statuses.values() if status.capabilities is not None]
    if not told:
        return
    capabilities = Capabilities(
        verifiers=tuple(_union(each.verifiers for each in told)),
        judges=tuple(_union(each.judges for each in told)),
    )
    fields = _fields(reward, grader)
    lines = [f"{field}: {why}" for field, check in fields if (why := capabilities.lacking(check))]
    if lines:
        raise from_lines(lines, code="invalid_grader")


def _fields(reward: Reward, grader: str | None) -> Iterable[tuple[str, Check]]:
    for number, check in enumerate(reward.outcome):
        yield grader or f"recipe.reward.outcome.{number}", check
    for number, check in enumerate(reward.process):
        yield f"recipe.reward.process.{number}", check


def _union(parts: Iterable[Iterable[str]]) -> dict[str, None]:
    return {name: None for part in parts for name in part}
