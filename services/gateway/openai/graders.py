"""OpenAI's graders, ``method.reinforcement.grader``, as the checks of a recipe's reward. Pure.

Only what the recipe can say is taken; everything else is refused with what to use instead.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from protocol.exchange import Exchange
from protocol.formula import Formula, FormulaError, read_formula
from protocol.messages import Offers
from protocol.offers import lacking
from protocol.recipe import explain
from protocol.rewards import (
    JUDGE,
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
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

from services.gateway.errors import Problem, from_lines, in_time
from services.gateway.openai.body import Body, Part
from services.gateway.openai.weighted_mean import weights_of

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_PARSED_CHARS = 65_536  # of a body: who parses more keeps everybody else waiting
_MAX_GRADERS = 20
_WEIRS_OWN = {"math_answer": MathAnswer, "equation_steps": Check, "model_judge": ModelJudge}
_REFUSED_TYPES = {
    "endpoint": "no endpoint of a client is called; use score_model, which asks a judge of this "
    "deployment",
}
_REFUSED_METRICS = {
    "cosine": "it needs a model of embeddings; use score_model",
    "meteor": "it needs a dictionary of synonyms; use rouge_l or gleu",
}
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")  # as the grader reads it; in time linear in the text
_PATH = r"(?:\.\w+|\[\d+\])"  # a key, or the number of an entry of a list
_KNOWN_PLACE = re.compile(
    rf"\s*(?:sample\.output_text|sample\.output_json{_PATH}*|item\.\w+{_PATH}*)\s*"
)
_MAX_CHARS = 100_000
_SHOWN_CHARS = 60  # of what is wrong


def _template(text: str) -> str:
    if len(text) > _MAX_CHARS:
        raise ValueError(f"holds {len(text)} characters; shorten it to {_MAX_CHARS}")
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
    if "output_tools" in place:
        return "a response is text: use {{sample.output_text}} or {{sample.output_json}}"
    return (
        "use {{sample.output_text}}, {{sample.output_json.NAME}}, or {{item.NAME}} with a column "
        "of the data set, such as {{item.prompt}}, {{item.answer}} or {{item.solution}}"
    )


Template = Annotated[str, AfterValidator(_template)]


def _supported_metric(value: object) -> object:
    if isinstance(value, str) and (remedy := _REFUSED_METRICS.get(value)):
        raise ValueError(f"{value!r} is not supported: {remedy}")
    return value


def _as_text(content: object) -> object:
    """The text of a content that is a block of text or a list of them."""
    if not isinstance(content, list):
        content = [content]
    return "".join(map(_text_of_block, content))


def _text_of_block(block: object) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Mapping) and block.get("type") in ("input_text", "output_text"):
        text = block.get("text")
        if isinstance(text, str):
            return text
    raise ValueError("only text can be judged; give a string, or blocks of type 'input_text'")


def _uncut(top_p: float | None) -> float | None:
    if top_p not in {None, 1.0}:
        raise ValueError("the judge's distribution is not cut; leave it out, or set temperature")
    return top_p


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


def _turns(messages: list[_Message]) -> list[dict[str, str]]:
    return [message.model_dump(exclude={"type"}) for message in messages]


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
    model: str = JUDGE
    input: list[_Message]
    range: list[float] | None = Field(default=None, min_length=2, max_length=2)
    sampling_params: _SamplingParams | None = None

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        given = self.sampling_params or _SamplingParams()
        settings = {
            "model": self.model,
            "range": self.range,
            "seed": given.seed,
            "temperature": given.temperature,
            "max_tokens": given.max_tokens,
            "reasoning_effort": given.reasoning_effort,
        }
        chosen = {key: value for key, value in settings.items() if value is not None}
        return {"input": _turns(self.input), **chosen}


class LabelModelGrader(_Single):
    """A model picks a label for what the messages tell it."""

    type: Literal["label_model"]
    model: str = JUDGE
    input: list[_Message]
    labels: list[str]
    passing_labels: list[str]

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        own = self.model_dump(exclude={"type", "name", "input"})
        return {"input": _turns(self.input), **own}


class PythonGrader(_Single):
    """A function of the client's own. There is one image, so its tag changes nothing."""

    type: Literal["python"]
    source: Annotated[str, Field(max_length=262_144)]
    image_tag: str | None = None

    def settings(self) -> dict[str, Any]:
        """What the check of the recipe is made of."""
        return {"source": self.source}


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
    "label_model": LabelModel,
    "python": PythonSource,
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
    | Annotated[LabelModelGrader, Tag("<label_model>")]
    | Annotated[PythonGrader, Tag("<python>")]
    | Annotated[WeirGrader, Tag("<weir>")]
)


def _no_multi(value: object) -> object:
    if isinstance(value, Mapping) and value.get("type") == "multi":
        raise ValueError("a multi grader holds no other one; write all graders into the outer one")
    return value


class MultiGrader(_Single):
    """Several graders by name, and what is reckoned of their grades."""

    type: Literal["multi"]
    graders: dict[
        str,
        Annotated[
            Annotated[_OneGrader, Discriminator(_tag)],
            BeforeValidator(_known_type),
            BeforeValidator(_no_multi),
        ],
    ] = Field(min_length=1, max_length=_MAX_GRADERS)
    calculate_output: str


AnyGrader: TypeAlias = Annotated[
    Annotated[_OneGrader | Annotated[MultiGrader, Tag("<multi>")], Discriminator(_tag)],
    BeforeValidator(_known_type),
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
    _refuse_wrong_sources(grader, path)
    if not isinstance(grader, MultiGrader):
        return {"outcome": (_check(grader, path, weight=1.0, name=None),)}
    for name in grader.graders:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise _problem(f"{path}.graders", f"{name!r}: use letters, digits and '_' in a name")
    formula = _formula(grader, f"{path}.calculate_output")
    weights = None if _is_on_other_scales(grader) else weights_of(formula, grader.graders)
    checks = tuple(
        _check(part, f"{path}.graders.{name}", weight=(weights or {}).get(name, 1.0), name=name)
        for name, part in grader.graders.items()
    )
    return {"outcome": checks} | ({} if weights else {"formula": grader.calculate_output})


def _refuse_wrong_sources(grader: AnyGrader, path: str) -> None:
    """Tell what is wrong with short sources; of long ones the grader tells."""
    parts = {path: grader}
    if isinstance(grader, MultiGrader):
        parts = {f"{path}.graders.{name}": part for name, part in grader.graders.items()}
    sources = {path: part.source for path, part in parts.items() if isinstance(part, PythonGrader)}
    if sum(map(len, sources.values())) > _MAX_PARSED_CHARS:
        return
    for place, source in sources.items():
        if wrong := _wrong_in(source):
            raise _problem(f"{place}.source", wrong)


def _wrong_in(source: str) -> str | None:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is not Python: {str(error) or 'nested too deeply'}"
    if not any(isinstance(part, ast.FunctionDef) and part.name == "grade" for part in body):
        return "has no function grade; define grade(sample, item), a number"
    return None


def _formula(grader: MultiGrader, path: str) -> Formula:
    try:
        formula = read_formula(grader.calculate_output)
    except FormulaError as error:
        raise _problem(path, str(error)) from error
    if unknown := sorted(formula.names - grader.graders.keys()):
        known = ", ".join(grader.graders)
        raise _problem(path, f"{unknown[0]!r} is none of the graders: {known}")
    if unused := sorted(grader.graders.keys() - formula.names):
        raise _problem(path, f"the grader {unused[0]!r} is not used; use it, or leave it out")
    return formula


def _is_on_other_scales(grader: MultiGrader) -> bool:
    """Whether the formula is about a number that would be moved to [0, 1] in a weighted mean."""
    parts = grader.graders.values()
    return any(getattr(part, "range", None) not in (None, [0, 1]) for part in parts)


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


async def refuse_what_graders_lack(exchange: Exchange, reward: Reward, grader: str | None) -> None:
    """Refuse a reward that no grader that runs could give; while none runs, nothing is refused.

    ``grader`` is the place in the body of the grader that became the outcome, if there is one.

    Raises:
        Problem: 400 naming the field, what the graders lack, and the remedy; 503 without Redis.
    """
    statuses = await in_time(exchange.statuses())
    told = [status.offers for status in statuses.values() if status.offers is not None]
    if not told:
        return
    offers = Offers(
        verifiers=tuple(_union(each.verifiers for each in told)),
        judges=tuple(_union(each.judges for each in told)),
    )
    fields = _fields(reward, grader)
    lines = [f"{field}: {why}" for field, check in fields if (why := lacking(offers, check))]
    if lines:
        raise from_lines(lines, code="invalid_grader")


def _fields(reward: Reward, grader: str | None) -> Iterable[tuple[str, Check]]:
    for number, check in enumerate(reward.outcome):
        yield grader or f"recipe.reward.outcome.{number}", check
    for number, check in enumerate(reward.process):
        yield f"recipe.reward.process.{number}", check


def _union(parts: Iterable[Iterable[str]]) -> dict[str, None]:
    return {name: None for part in parts for name in part}
