"""The reward settings of a recipe.

An outcome or a process score consists of *checks*. A check names a verifier and holds the
verifier's settings. A weighted mean combines the scores of several checks; a formula may combine
those of the outcome. In a recipe::

    outcome = "math_answer"                        # one verifier with its defaults

    [[reward.process]]                             # or several
    verifier = "model_judge"
    rubric = "holistic"
    weight = 3.0
    if_ungradable = "leave_out"

    [[reward.process]]
    verifier = "equation_steps"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag, model_validator

from protocol.formula import FormulaError, read_formula
from protocol.names import RubricName, Table, TemplateOptions, VerifierName
from protocol.rubric import Rubric

# A tag of the union; `recipe_files.explain` drops tags in <> from a field's name.
_PLAIN = "<plain>"
_MAX_RANGE = 1e6
JUDGE = "judge"  # the name of the deployment's judge
_TEMPLATE = "a template with {{item.answer}}, {{sample.output_text}}"


class Check(Table):
    """The part of one verifier in a score. Verifiers with settings have subclasses."""

    verifier: VerifierName = Field(description="a verifier's name")
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="the label in breakdown and formula; none: the verifier's name",
    )
    weight: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="the weight in the mean and in `gdpo`"
    )
    sees: Literal["all", "correct"] = Field(
        default="all", description="which responses it checks, of those in `process_for`"
    )
    if_ungradable: Literal["ungradable", "leave_out"] = Field(
        default="ungradable",
        description="the score if this check has none: ungradable, or that of the other checks",
    )

    settings: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="settings of a verifier that an extension adds"
    )

    @model_validator(mode="after")
    def _settings_are_read(self) -> Self:
        if self.settings and "." not in self.verifier:
            raise ValueError(f"settings: {self.verifier!r} reads none; remove them")
        return self

    @property
    def label(self) -> str:
        return self.name or self.verifier

    def to_scale(self, value: float) -> float:
        """Map a value from [0, 1] to the scale on which the verifier gave it."""
        return value


Label = Annotated[str, Field(min_length=1, max_length=200)]


class JudgeCheck(Check):
    """Settings of requests to a judge; the environment has its address."""

    model: str = Field(
        default=JUDGE,
        min_length=1,
        max_length=200,
        description="the judge's name: `judge` for the deployment's, or a name in `WEIR_JUDGES`",
    )
    samples: int = Field(
        default=1, ge=1, le=32, description="the number of verdicts that the score averages"
    )
    reasoning_effort: Literal["low", "medium", "high"] = Field(
        default="medium", description="the reasoning effort that the judge is asked for"
    )
    chat_template_options: TemplateOptions = Field(
        default_factory=dict[str, bool | int | str],
        description="variables of the judge's chat template, such as `enable_thinking = false`",
    )
    max_tokens: int = Field(
        default=16_384, ge=64, description="the most tokens of the judge's reasoning and verdict"
    )
    temperature: float = Field(
        default=0.0,
        ge=0,
        le=2,
        description="the judge's sampling temperature; above 0 with several samples",
    )
    seed: int = Field(
        default=0, ge=0, description="the seed of the first sample; the next ones count up"
    )

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} at temperature 0 are identical; set temperature "
                "(gpt-oss expects 1.0), or samples = 1"
            )
        return self


class MathAnswer(Check):
    """A comparison of the last box with the task's answer."""

    verifier: VerifierName = "math_answer"
    unknown: Literal["wrong", "ungradable", "judge"] = Field(
        default="wrong",
        description="the verdict on an answer that neither rules nor algebra decide; `judge` asks "
        "a model with the rubric `holistic`",
    )


class ModelJudge(JudgeCheck):
    """Grading by a model with a rubric of Weir or of the recipe."""

    verifier: VerifierName = "model_judge"
    rubric: Annotated[
        Annotated[RubricName, Tag("<name>")] | Annotated[Rubric, Tag("<table>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<table>"),
    ] = Field(default="holistic", description="the name holistic, proof or checkpoints, or a table")


class JudgeMessage(Table):
    """One message of the prompt for a judge."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="the role of the message"
    )
    content: str = Field(min_length=1, description=_TEMPLATE)


class OnScale(Check):
    """A check with a scale of its own."""

    range: tuple[float, float] = Field(
        default=(0.0, 1.0), description="the lowest and the highest value, which become 0 and 1"
    )

    @model_validator(mode="after")
    def _range_rises(self) -> Self:
        if not -_MAX_RANGE <= self.range[0] < self.range[1] <= _MAX_RANGE:
            raise ValueError(
                "range must be [lowest, highest] with lowest below highest, both within a million"
            )
        return self

    def to_scale(self, value: float) -> float:
        lowest, highest = self.range
        return lowest + value * (highest - lowest)


class ScoreModel(OnScale, JudgeCheck):
    """A number from a model, for messages of the client; OpenAI's ``score_model``."""

    verifier: VerifierName = "score_model"
    input: tuple[JudgeMessage, ...] = Field(min_length=1, description="the messages to the model")


class LabelModel(JudgeCheck):
    """A label from a model, for messages of the client; OpenAI's ``label_model``."""

    verifier: VerifierName = "label_model"
    input: tuple[JudgeMessage, ...] = Field(min_length=1, description="the messages to the model")
    labels: tuple[Label, ...] = Field(
        min_length=1, max_length=100, description="the labels that the model chooses from"
    )
    passing_labels: tuple[Label, ...] = Field(
        min_length=1, description="the labels with score 1; all others have 0"
    )

    @model_validator(mode="after")
    def _some_labels_pass(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels: one is listed twice; remove a copy")
        unknown = [name for name in self.passing_labels if name not in self.labels]
        if unknown:
            raise ValueError(f"passing_labels: {unknown[0]!r} is none of the labels; add it there")
        return self


class PythonSource(Check):
    """The client's function ``grade(sample, item)``; OpenAI's ``python``."""

    verifier: VerifierName = "python"
    source: str = Field(
        min_length=1, max_length=262_144, description="a Python module that defines `grade`"
    )


class StringCheck(Check):
    """A comparison of two texts; OpenAI's ``string_check``."""

    verifier: VerifierName = "string_check"
    input: str = Field(default="{{sample.output_text}}", description=_TEMPLATE)
    reference: str = Field(default="{{item.answer}}", description=_TEMPLATE)
    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        default="eq",
        description="equal, unequal, or input contains reference (`ilike` ignores case)",
    )


class TextSimilarity(Check):
    """The similarity of two texts; OpenAI's ``text_similarity``."""

    verifier: VerifierName = "text_similarity"
    input: str = Field(default="{{sample.output_text}}", description=_TEMPLATE)
    reference: str = Field(default="{{item.answer}}", description=_TEMPLATE)
    evaluation_metric: Literal[
        "fuzzy_match",
        "bleu",
        "gleu",
        "rouge_1",
        "rouge_2",
        "rouge_3",
        "rouge_4",
        "rouge_5",
        "rouge_l",
    ] = Field(default="fuzzy_match", description="the measure of similarity")


class EnvironmentReward(OnScale):
    """The reward that the environment gave to an episode."""

    verifier: VerifierName = "environment"


WITH_SETTINGS = {
    "environment": EnvironmentReward,
    "label_model": LabelModel,
    "math_answer": MathAnswer,
    "model_judge": ModelJudge,
    "python": PythonSource,
    "score_model": ScoreModel,
    "string_check": StringCheck,
    "text_similarity": TextSimilarity,
}


def _tag(value: Any) -> str:
    if isinstance(value, Mapping):
        verifier = value.get("verifier")
    else:
        verifier = getattr(value, "verifier", None)
    has_class = isinstance(verifier, str) and verifier in WITH_SETTINGS
    return f"<{verifier}>" if has_class else _PLAIN


AnyCheck = Annotated[
    Annotated[Check, Tag(_PLAIN)]
    | Annotated[EnvironmentReward, Tag("<environment>")]
    | Annotated[LabelModel, Tag("<label_model>")]
    | Annotated[MathAnswer, Tag("<math_answer>")]
    | Annotated[ModelJudge, Tag("<model_judge>")]
    | Annotated[PythonSource, Tag("<python>")]
    | Annotated[ScoreModel, Tag("<score_model>")]
    | Annotated[StringCheck, Tag("<string_check>")]
    | Annotated[TextSimilarity, Tag("<text_similarity>")],
    Discriminator(_tag),
]


def _to_checks(value: Any) -> Any:
    """Turn a name into a check without settings, and one check into a list of one."""
    if value is None:
        return ()
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    checks = value if is_list else [value]
    return tuple({"verifier": check} if isinstance(check, str) else check for check in checks)


Checks = Annotated[tuple[AnyCheck, ...], BeforeValidator(_to_checks)]


class Reward(Table):
    """The checks of a response, and the reward that they give.

    The reward of a response is its outcome's value plus the overlong punishment (DAPO,
    arXiv:2503.14476, equation 13): 0 up to ``max_tokens - overlong_buffer`` tokens, then linearly
    down to ``-overlong_factor`` at ``max_tokens``. Correctness depends on the raw outcome alone.
    """

    outcome: Checks = Field(
        default=(MathAnswer(),),
        min_length=1,
        description="checks of the outcome, which decide whether a response is correct",
    )
    formula: str | None = Field(
        default=None,
        description="a formula of the outcome's checks by name, such as max(a, 0.5 * b), clipped "
        "to [0, 1]; none: the weighted mean",
    )
    process: Checks = Field(default=(), description="checks of the process, step by step")
    process_for: Literal["correct", "all"] = Field(
        default="correct", description="which responses get a process score"
    )
    max_ungradable: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="the share of ungradable scores above which the job pauses",
    )
    values: tuple[float, float] = Field(
        default=(0.0, 1.0), description="the rewards of a wrong and of a right answer"
    )
    overlong_buffer: int | None = Field(
        default=None,
        ge=1,
        description="the number of tokens below `max_tokens` over which DAPO's overlong punishment "
        "grows; none: no punishment",
    )
    overlong_factor: float = Field(
        default=1.0,
        gt=0,
        description="the overlong punishment at `max_tokens`; in `gdpo` its weight",
    )
    overlong_filter: bool = Field(
        default=False, description="leave truncated responses out of the loss"
    )

    @model_validator(mode="after")
    def _values_rise(self) -> Self:
        if not self.values[0] < self.values[1]:
            raise ValueError("values must be [wrong, right] with wrong below right")
        if self.overlong_buffer is None and self.overlong_factor != 1.0:
            raise ValueError("overlong_factor does nothing without overlong_buffer; set both")
        return self

    @model_validator(mode="after")
    def _checks_fit_together(self) -> Self:
        for field, checks in (("outcome", self.outcome), ("process", self.process)):
            labels = [check.label for check in checks]
            if len(set(labels)) < len(labels):
                raise ValueError(f"{field}: two checks have the same name; give each its own")
            if len(checks) == 1 and checks[0].if_ungradable == "leave_out":
                raise ValueError(f"{field}: the only check cannot be left out if it is ungradable")
            if checks and all(check.sees == "correct" for check in checks):
                raise ValueError(
                    f"{field}: some check must see all; for a process score of correct responses "
                    "alone set process_for = 'correct'"
                )
        if any(check.sees == "correct" for check in self.outcome):
            raise ValueError("outcome: correctness is not known before it; set sees = 'all'")
        if self.process_for == "correct" and any(check.sees == "correct" for check in self.process):
            raise ValueError("process: sees = 'correct' does nothing with process_for = 'correct'")
        return self

    @model_validator(mode="after")
    def _formula_reads_each_check(self) -> Self:
        if self.formula is None:
            return self
        try:
            used = read_formula(self.formula).names
        except FormulaError as error:
            raise ValueError(f"formula: {error}") from error
        labels = {check.label for check in self.outcome}
        if unknown := sorted(used - labels):
            raise ValueError(
                f"formula: {unknown[0]!r} is none of the outcome's checks: "
                f"{', '.join(sorted(labels))}"
            )
        if unused := sorted(labels - used):
            raise ValueError(f"formula: {unused[0]!r} is not used; use it, or remove it")
        if any(check.weight != 1 or check.if_ungradable != "ungradable" for check in self.outcome):
            raise ValueError(
                "formula: weight and if_ungradable of the outcome's checks do nothing with it; "
                "remove them"
            )
        return self

    @property
    def judge_checks(self) -> tuple[JudgeCheck, ...]:
        checks: list[JudgeCheck] = []
        for check in (*self.outcome, *self.process):
            if isinstance(check, JudgeCheck):
                checks.append(check)
            elif isinstance(check, MathAnswer) and check.unknown == "judge":
                checks.append(ModelJudge())
        return tuple(checks)
