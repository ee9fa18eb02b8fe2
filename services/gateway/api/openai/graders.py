"""OpenAI's graders, ``method.reinforcement.grader``, as a recipe's reward, and tried on a response.

Only what a recipe can say is taken; everything else is refused with what to use instead.
"""

from __future__ import annotations

import ast
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from protocol.exchange import Exchange
from protocol.messages import NOT_GIVEN, Graded, Score, Task, Trial, TrialResult, Ungradable
from protocol.recipe import explain
from protocol.rewards import (
    WITH_SETTINGS,
    Check,
    LabelModel,
    PythonSource,
    Reward,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)
from protocol.tasks import as_text
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationError,
)

from services.gateway.api.openai.body import Body, Part
from services.gateway.errors import Problem, from_lines, in_time, wrong

_FIELDS: Mapping[str, set[str]] = {  # that each type may have
    "string_check": {"input", "reference", "operation"},
    "text_similarity": {"input", "reference", "evaluation_metric"},
    "score_model": {"model", "input", "range", "sampling_params"},
    "label_model": {"model", "input", "labels", "passing_labels"},
    "python": {"source", "image_tag"},
    "math_answer": set(),
    "equation_steps": set(),
    "model_judge": set(),
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
_MOST_WAITING = 32
_TAKEN_WITHIN_S = 10.0
_DONE_WITHIN_S = 130.0  # a grader gives up before
_LOOK_S = 1.0
_TEXTS = ("id", "prompt", "answer", "solution")
_FLAGS = {  # of OpenAI's, by the reasons of what could not be graded
    "formula_parse_error": {"formula_undefined"},
    "invalid_variable_error": {"unknown_field"},
    "model_grader_parse_error": {"no_verdict", "verdict_cut"},
    "model_grader_refusal_error": {"judge_refused"},
    "model_grader_server_error": {"judge_failed", "judge_timeout", "over_judge_context"},
    "python_grader_runtime_error": {"python_error", "python_memory", "python_timeout"},
    "python_grader_server_error": {"python_crash", "starved"},
    "unresponsive_reward_error": {"not_in_time"},
}
_NEVER = ("sample_parse_error", "truncated_observation_error")


def _known_type(kind: object) -> object:
    if remedy := _REMEDIES.get(str(kind)):
        raise ValueError(f"{kind!r} is not supported: {remedy}")
    if str(kind) not in _FIELDS:
        raise ValueError(f"{kind!r} is none of {', '.join(_FIELDS)}, nor a multi of them")
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


def reward_of(grader: AnyGrader, path: str) -> Reward:
    """A reward whose outcome, and formula if it is a multi, grade as the grader says.

    Raises:
        Problem: 400 naming each wrong field below ``path``, the grader's place in the body.
    """
    if isinstance(grader, MultiGrader):
        places = {name: f"{path}.graders.{name}" for name in grader.graders}
        checks = {at: _check(grader.graders[name], at, name) for name, at in places.items()}
        formula = grader.calculate_output
    else:
        checks, formula = {path: _check(grader, path, None)}, None
    _refuse_wrong_texts(checks)
    try:
        return Reward(outcome=tuple(checks.values()), formula=formula)
    except ValidationError as error:
        lines = explain(error, whole=f"{path}.calculate_output").splitlines()
        raise from_lines(lines, code="invalid_grader") from error


def _check(grader: Grader, path: str, name: str | None) -> Check:
    known = _FIELDS[grader.type]
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
        kind = WITH_SETTINGS.get(grader.type, Check)
        return kind.model_validate({**given, "verifier": grader.type, "name": name})
    except ValidationError as error:
        lines = (_below(path, line) for line in explain(error, whole=path).splitlines())
        raise from_lines(list(lines), code="invalid_grader") from error


def _sampling(given: Any, path: str) -> dict[str, Any]:
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
    """Each with its field."""
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
    """
    statuses = await in_time(exchange.statuses())
    told = [status.capabilities for status in statuses.values() if status.capabilities is not None]
    outcome, process = enumerate(reward.outcome), enumerate(reward.process)
    fields = [(grader or f"recipe.reward.outcome.{n}", check) for n, check in outcome]
    fields += [(f"recipe.reward.process.{n}", check) for n, check in process]
    reasons = ((field, [each.lacking(check) for each in told]) for field, check in fields)
    if lines := [f"{field}: {why[0]}" for field, why in reasons if why and all(why)]:
        raise from_lines(lines, code="invalid_grader")


# ---------------------------------------------------------------------- trials


class GraderToRun(Body):
    """The body of ``POST /v1/fine_tuning/alpha/graders/run``."""

    grader: AnyGrader | None = None
    job: str | None = Field(default=None, description="whose reward grades, if no grader is given")
    model_sample: str = Field(description="{{sample.output_text}}")
    item: Mapping[str, JsonValue] | None = Field(default=None, description="{{item.…}}")

    def trial(self, of_job: Reward | None = None) -> Trial:
        """What a grader is asked; 400 if it is wrong, or asks for a column that the item lacks."""
        reward = of_job if self.grader is None else reward_of(self.grader, "grader")
        if reward is None or (of_job is not None and self.grader is not None):
            raise wrong("grader", "give either a grader or the id of a job")
        task = _task(self.item or {})
        for check in reward.outcome:
            if check.verifier == "math_answer" and task.answer is None:
                raise wrong("item.answer", f"missing, but {check.label} compares with it; add it")
            if check.verifier == "model_judge" and task.prompt == NOT_GIVEN:
                raise wrong("item.prompt", f"missing, but {check.label} is told it; add it")
        return Trial(id=secrets.token_hex(12), reward=reward, task=task, text=self.model_sample)


async def run_trial(
    exchange: Exchange,
    trial: Trial,
    taken_within_s: float = _TAKEN_WITHIN_S,
    done_within_s: float = _DONE_WITHIN_S,
) -> TrialResult:
    """Have a free grader do it; 400 if the graders lack what it needs, 503 if none does it."""
    if not await in_time(exchange.ask_trial(trial, _MOST_WAITING)):
        raise _unavailable(f"{_MOST_WAITING} trials of graders wait already")
    result = await _result(exchange, trial, taken_within_s)
    if result is None and await in_time(exchange.withdraw_trial(trial)):
        raise _unavailable(
            f"no grader took it within {taken_within_s:g} s: none runs, or all are busy with "
            "other trials; see that one runs"
        )
    result = result or await _result(exchange, trial, done_within_s)
    if result is None:
        raise _unavailable("the grader that took it has ended")
    if result.missing:
        raise wrong("grader", result.missing, code="invalid_grader")
    return result


async def _result(exchange: Exchange, trial: Trial, within_s: float) -> TrialResult | None:
    """Look again and again, so that a long wait is none for a Redis that has fallen silent."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        wait_s = min(left_s, _LOOK_S)
        if result := await in_time(exchange.trial_result(trial.id, wait_s), wait_s):
            return result
    return None


def run_object(grader: AnyGrader | None, result: TrialResult) -> dict[str, Any]:
    """What became of it in OpenAI's shape, and in Weir's own under ``weir``.

    What could not be graded has no number: its reward is null.
    """
    values = {label: _value(score) for label, score in result.scores.items()}
    kind = "job" if grader is None else grader.type
    return {
        "reward": _value(result.outcome),
        "metadata": {
            "name": (grader and grader.name) or kind,
            "type": kind,
            "errors": _errors(result),
            "execution_time": result.seconds,
            "scores": values,
            "token_usage": sum(result.tokens.values()),
            "sampled_model_name": None,
        },
        "model_grader_token_usage_per_model": dict(result.tokens),
        "sub_rewards": values if isinstance(grader, MultiGrader) else {},
        "weir": result.model_dump(mode="json", include={"outcome", "process", "scores", "details"}),
    }


def _errors(result: TrialResult) -> dict[str, Any]:
    scores = (result.outcome, *result.scores.values())
    lost = {score.reason for score in scores if isinstance(score, Ungradable)}
    flags = {name: bool(lost & reasons) for name, reasons in _FLAGS.items()}
    known = set().union(*_FLAGS.values())
    details = {
        f"{name}_details": next((result.details[why] for why in _FLAGS[name] & lost), None)
        for name in ("model_grader_server_error", "python_grader_runtime_error")
        if _FLAGS[name] & result.details.keys()
    }
    return {**flags, **dict.fromkeys(_NEVER, False), "other_error": bool(lost - known), **details}


def _task(item: Mapping[str, JsonValue]) -> Task:
    """The item as a task of a job would have it; what it has beyond that is its metadata."""
    given = {name: value for name, value in item.items() if value not in (None, "")}
    texts = {name: as_text(given[name]) for name in _TEXTS if name in given}
    texts.setdefault("id", "item")
    if "reference_answer" in given:
        texts.setdefault("answer", as_text(given["reference_answer"]))
    others = {name: value for name, value in item.items() if name not in Task.model_fields}
    own = given.get("metadata", {})
    metadata = {**own, **others} if isinstance(own, dict) else own
    asked = {"messages": given["messages"]} if "messages" in given else {"prompt": NOT_GIVEN}
    try:
        return Task.model_validate(
            {**({} if "prompt" in texts else asked), **texts, "metadata": metadata}
        )
    except ValidationError as error:
        lines = [f"item.{line}" for line in explain(error, whole="item").splitlines()]
        raise from_lines(lines, code="invalid_item") from error


def _value(score: Score | None) -> float | None:
    return score.value if isinstance(score, Graded) else None


def _unavailable(why: str) -> Problem:
    message = f"{why}; the request may be repeated"
    return Problem(503, message, code="no_grader", headers={"Retry-After": "2"})
