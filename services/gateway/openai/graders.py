"""OpenAI's graders, ``method.reinforcement.grader``, as the checks of a recipe's reward. Pure.

Only what the recipe can say is taken; everything else is refused with what to use instead.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from protocol.recipe import explain
from protocol.rewards import Check, ModelJudge, ScoreModel, StringCheck, TextSimilarity
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

from services.gateway.errors import Problem, from_lines
from services.gateway.openai.body import Body, Part
from services.gateway.openai.weighted_mean import NoWeightedMean, weights_of

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")  # as the grader reads it; in time linear in the text
_KNOWN_PLACE = re.compile(r"\s*(?:sample\.output_text|item(?:\.\w+)+)\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_TEMPLATE_CHARS = 100_000
_SHOWN_CHARS = 60  # of what is wrong in a template
_JUDGE = "judge"
_WEIRS_OWN = {"math_answer": Check, "equation_steps": Check, "model_judge": ModelJudge}
_REFUSED_TYPES = {
    "python": "a client's code is not run here; use string_check, text_similarity, score_model, a "
    "multi of them, or Weir's own {'type': 'math_answer'}",
    "label_model": "use score_model; or recipe.reward.outcome with the verifier model_judge, whose "
    "rubric gives the levels names",
    "endpoint": "no endpoint of a client is called; use score_model, which asks the judge of this "
    "deployment",
}
_REFUSED_METRICS = {
    "cosine": "it needs a model of embeddings; use score_model",
    "meteor": "it needs a dictionary of synonyms; use rouge_l or gleu",
}


def _template(text: str) -> str:
    if len(text) > _MAX_TEMPLATE_CHARS:
        raise ValueError(f"holds {len(text)} characters; shorten it to {_MAX_TEMPLATE_CHARS}")
    for place in _PLACE.findall(text):
        if not _KNOWN_PLACE.fullmatch(place):
            shown = place[:_SHOWN_CHARS]
            raise ValueError(f"{{{{{shown}}}}} is not known here; {_instead_of(place)}")
    _, opened, behind = _PLACE.sub("…", text).partition("{{")
    if opened:
        raise ValueError(
            f"'{{{{{behind[:_SHOWN_CHARS]}' names no field; close it with }}}}, or write '{{ {{' "
            "for braces that are text"
        )
    return text


def _instead_of(place: str) -> str:
    if "output_json" in place or "output_tools" in place:
        return "a response is text: use {{sample.output_text}}"
    return "use {{sample.output_text}}, {{item.prompt}}, {{item.answer}} or {{item.COLUMN}}"


def _supported_metric(value: object) -> object:
    if isinstance(value, str) and (remedy := _REFUSED_METRICS.get(value)):
        raise ValueError(f"{value!r} is not supported: {remedy}")
    return value


def _the_judge(value: str) -> str:
    if value != _JUDGE:
        raise ValueError(
            f"the deployment chooses the judge's model (WEIR_JUDGE_MODEL); write {_JUDGE!r} "
            f"instead of {value!r}"
        )
    return value


def _as_text(content: object) -> object:
    """The text of a content that is a block of text or a list of them."""
    if not isinstance(content, list):
        content = [content]
    return "".join(map(_text_of_block, content))


def _text_of_block(block: object) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Mapping) and block.get("type") in {"input_text", "output_text"}:
        text = block.get("text")
        if isinstance(text, str):
            return text
    raise ValueError("only text can be judged; give a string, or blocks of type 'input_text'")


def _uncut(top_p: float | None) -> float | None:
    if top_p not in {None, 1.0}:
        raise ValueError("the judge's distribution is not cut; leave it out, or set temperature")
    return top_p


Template = Annotated[str, AfterValidator(_template)]


class _Single(Part):
    name: str | None = None


class StringCheckGrader(_Single):
    """Two texts, compared."""

    type: Literal["string_check"]
    input: Template
    reference: Template
    operation: Literal["eq", "ne", "like", "ilike"]

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        return self.model_dump(exclude={"type", "name"})


class TextSimilarityGrader(_Single):
    """How alike two texts are."""

    type: Literal["text_similarity"]
    input: Template
    reference: Template
    evaluation_metric: Annotated[str, BeforeValidator(_supported_metric)]

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        return self.model_dump(exclude={"type", "name"})


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Template, BeforeValidator(_as_text)]
    type: Literal["message"] = "message"


class _SamplingParams(Part):
    """How the judge answers; the SDK writes ``max_completions_tokens``, the API's pages both."""

    seed: int | None = None
    temperature: float | None = None
    max_completions_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    top_p: Annotated[float | None, AfterValidator(_uncut)] = None

    @property
    def max_tokens(self) -> int | None:
        """Under whichever name it came."""
        if self.max_completions_tokens is not None:
            return self.max_completions_tokens
        return self.max_completion_tokens


class ScoreModelGrader(_Single):
    """A model gives a number to what the messages tell it."""

    type: Literal["score_model"]
    model: Annotated[str, AfterValidator(_the_judge)] = _JUDGE
    input: list[_Message]
    range: list[float] | None = Field(default=None, min_length=2, max_length=2)
    sampling_params: _SamplingParams = _SamplingParams()

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        given = self.sampling_params
        settings = {
            "range": self.range,
            "seed": given.seed,
            "temperature": given.temperature,
            "max_tokens": given.max_tokens,
            "reasoning_effort": given.reasoning_effort,
        }
        messages = [message.model_dump(exclude={"type"}) for message in self.input]
        chosen = {key: value for key, value in settings.items() if value is not None}
        return {"input": messages, **chosen}


class WeirGrader(_Single):
    """A verifier of Weir's own, as it is; settings of it are given in the recipe."""

    type: Literal["math_answer", "equation_steps", "model_judge"]

    def settings(self) -> dict[str, Any]:
        """There are none."""
        return {}


_CHECKS: Mapping[str, type[Check]] = {
    "string_check": StringCheck,
    "text_similarity": TextSimilarity,
    "score_model": ScoreModel,
    **_WEIRS_OWN,
}
_FIELDS = {  # of the check, where the grader calls it otherwise
    "seed": "sampling_params.seed",
    "temperature": "sampling_params.temperature",
    "max_tokens": "sampling_params.max_completions_tokens",
}


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "<weir>" if kind in _WEIRS_OWN else f"<{kind}>"


def _known_type(value: object) -> object:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(value, BaseModel) or (isinstance(kind, str) and kind in {*_CHECKS, "multi"}):
        return value
    if remedy := _REFUSED_TYPES.get(str(kind)):
        raise ValueError(f"type {kind!r} is not supported: {remedy}")
    found = "missing" if kind is None else repr(kind)
    raise ValueError(f"type: {found}; it must be one of multi, {', '.join(_CHECKS)}")


_OneGrader: TypeAlias = (
    Annotated[StringCheckGrader, Tag("<string_check>")]
    | Annotated[TextSimilarityGrader, Tag("<text_similarity>")]
    | Annotated[ScoreModelGrader, Tag("<score_model>")]
    | Annotated[WeirGrader, Tag("<weir>")]
)


def _no_multi(value: object) -> object:
    if isinstance(value, Mapping) and value.get("type") == "multi":
        raise ValueError("a multi grader holds no other one; write all graders into the outer one")
    return value


class MultiGrader(_Single):
    """Several graders by name, and their weighted mean."""

    type: Literal["multi"]
    graders: dict[
        str,
        Annotated[
            Annotated[_OneGrader, Discriminator(_tag)],
            BeforeValidator(_known_type),
            BeforeValidator(_no_multi),
        ],
    ] = Field(min_length=1)
    calculate_output: str


AnyGrader: TypeAlias = Annotated[
    Annotated[_OneGrader | Annotated[MultiGrader, Tag("<multi>")], Discriminator(_tag)],
    BeforeValidator(_known_type),
]


class GraderToValidate(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/validate``."""

    grader: AnyGrader


def checks_of(grader: AnyGrader, path: str) -> tuple[Check, ...]:
    """The checks of an outcome that grades as the grader says. ``path`` is its place in the body.

    Raises:
        Problem: 400 naming each wrong field below ``path``.
    """
    if not isinstance(grader, MultiGrader):
        return (_check(grader, path, weight=1.0, name=None),)
    for name, part in grader.graders.items():
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise _problem(f"{path}.graders", f"{name!r}: use letters, digits and '_' in a name")
        _refuse_scale(part, f"{path}.graders.{name}.range")
    try:
        weights = weights_of(grader.calculate_output, grader.graders)
    except NoWeightedMean as error:
        raise _problem(f"{path}.calculate_output", str(error)) from error
    return tuple(
        _check(part, f"{path}.graders.{name}", weight=weights[name], name=name)
        for name, part in grader.graders.items()
    )


def _refuse_scale(part: _OneGrader, field: str) -> None:
    """The number of a part must be the one that ``calculate_output`` means."""
    if isinstance(part, ScoreModelGrader) and part.range not in (None, [0, 1]):
        raise _problem(
            field,
            f"{part.range} would become [0, 1] before calculate_output is reckoned, so the formula "
            "would mean something else; leave it out, and let the messages ask for a number from "
            "0 to 1",
        )


def _check(grader: _OneGrader, path: str, *, weight: float, name: str | None) -> Check:
    settings = {"verifier": grader.type, "weight": weight, "name": name, **grader.settings()}
    try:
        return _CHECKS[grader.type].model_validate(settings)
    except ValidationError as error:
        lines = explain(error, whole=path).splitlines()
        raise from_lines([_below(path, line) for line in lines], code="invalid_grader") from error


def _below(path: str, line: str) -> str:
    """A problem of a check under the grader's own name for the field."""
    if line.startswith(path):
        return line
    field, _, text = line.partition(":")
    return f"{path}.{_FIELDS.get(field, field)}:{text}"


def _problem(field: str, text: str) -> Problem:
    return from_lines([f"{field}: {text}"], code="invalid_grader")
