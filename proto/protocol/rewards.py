"""The reward of a recipe: which verifiers are asked, about which responses, and what that pays.

An outcome or a process score is made of *checks*. A check names a verifier and holds that
verifier's settings; several are put together as a weighted mean, or those of the outcome by a
formula. In a recipe::

    outcome = "math_answer"                        # one verifier, as it is

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

_PLAIN = "<plain>"  # tags of the union; `recipe.explain` leaves out of a field's name what has <>
_MAX_RANGE = 1e6
JUDGE = "judge"  # the deployment's own
_TEMPLATE = "a template with {{item.answer}}, {{sample.output_text}}"


class Check(Table):
    """One verifier's part of a score. Verifiers with settings have a class of their own below."""

    verifier: VerifierName = Field(description="a verifier's name")
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="label in breakdown and formula; none: the verifier's",
    )
    weight: float = Field(default=1.0, ge=1e-6, le=1e6, description="in the mean, and in `gdpo`")
    sees: Literal["all", "correct"] = Field(
        default="all", description="of the responses that `process_for` lets through"
    )
    if_ungradable: Literal["ungradable", "leave_out"] = Field(
        default="ungradable", description="`leave_out`: the other checks decide"
    )

    settings: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="for a verifier of your own"
    )

    @model_validator(mode="after")
    def _settings_have_a_reader(self) -> Self:
        if self.settings and "." not in self.verifier:
            raise ValueError(f"settings: {self.verifier!r} reads none; remove them")
        return self

    @property
    def label(self) -> str:
        return self.name or self.verifier

    def as_meant(self, value: float) -> float:
        """A value in [0, 1] as a formula knows it: on the scale of whoever gave it."""
        return value


Label = Annotated[str, Field(min_length=1, max_length=200)]


class AskedOfAJudge(Check):
    """How a judge is asked; its address is in the environment."""

    model: str = Field(
        default=JUDGE,
        min_length=1,
        max_length=200,
        description="the deployment's judge, or one of `WEIR_JUDGES`",
    )
    samples: int = Field(
        default=1, ge=1, le=32, description="verdicts, of which the score is the mean"
    )
    reasoning_effort: Literal["low", "medium", "high"] = Field(
        default="medium", description="sent to the judge"
    )
    chat_template_options: TemplateOptions = Field(
        default_factory=dict[str, bool | int | str],
        description="variables of the judge's chat template, such as `enable_thinking = false`",
    )
    max_tokens: int = Field(default=16_384, ge=64, description="of reasoning and verdict")
    temperature: float = Field(default=0.0, ge=0, le=2, description="above 0 with several samples")
    seed: int = Field(default=0, ge=0, description="of the first sample; the next ones count up")

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} at temperature 0 are the same sample; set temperature "
                "(1.0 is what gpt-oss was made for), or ask for one"
            )
        return self


class MathAnswer(Check):
    """The last box is compared with the task's answer."""

    verifier: VerifierName = "math_answer"
    unknown: Literal["wrong", "ungradable", "judge"] = Field(
        default="wrong",
        description="how an answer counts that neither rules nor algebra decide; `judge`: by the "
        "rubric `holistic`",
    )


class ModelJudge(AskedOfAJudge):
    """A model grades by a rubric: one that comes with Weir, or a table of the recipe."""

    verifier: VerifierName = "model_judge"
    rubric: Annotated[
        Annotated[RubricName, Tag("<name>")] | Annotated[Rubric, Tag("<table>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<table>"),
    ] = Field(default="holistic", description="holistic, proof, checkpoints, or a table below")


class JudgeMessage(Table):
    """One turn of the conversation that a judge is sent."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="of the turn")
    content: str = Field(min_length=1, description=_TEMPLATE)


class OnScale(Check):
    """A check whose numbers are on a scale of their own."""

    range: tuple[float, float] = Field(default=(0.0, 1.0), description="mapped to [0, 1]")

    @model_validator(mode="after")
    def _range_rises(self) -> Self:
        if not -_MAX_RANGE <= self.range[0] < self.range[1] <= _MAX_RANGE:
            raise ValueError(
                "range must be [lowest, highest] with lowest below highest, both within a million"
            )
        return self

    def as_meant(self, value: float) -> float:
        lowest, highest = self.range
        return lowest + value * (highest - lowest)


class ScoreModel(OnScale, AskedOfAJudge):
    """A model answers messages of your own with a number; OpenAI's ``score_model``."""

    verifier: VerifierName = "score_model"
    input: tuple[JudgeMessage, ...] = Field(min_length=1, description="the messages to send")


class LabelModel(AskedOfAJudge):
    """A model answers messages of your own with a label; OpenAI's ``label_model``."""

    verifier: VerifierName = "label_model"
    input: tuple[JudgeMessage, ...] = Field(min_length=1, description="the messages to send")
    labels: tuple[Label, ...] = Field(min_length=1, max_length=100, description="to choose from")
    passing_labels: tuple[Label, ...] = Field(min_length=1, description="worth 1; the others 0")

    @model_validator(mode="after")
    def _some_labels_pass(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels: one is there twice; give each once")
        if strange := [name for name in self.passing_labels if name not in self.labels]:
            raise ValueError(f"passing_labels: {strange[0]!r} is none of the labels; add it there")
        return self


class PythonSource(Check):
    """A function ``grade(sample, item)`` of the client's own; OpenAI's ``python``."""

    verifier: VerifierName = "python"
    source: str = Field(min_length=1, max_length=262_144, description="a module with `grade`")


class StringCheck(Check):
    """Two texts, compared; OpenAI's ``string_check``."""

    verifier: VerifierName = "string_check"
    input: str = Field(default="{{sample.output_text}}", description=_TEMPLATE)
    reference: str = Field(default="{{item.answer}}", description=_TEMPLATE)
    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        default="eq", description="`like`: the input contains the reference; `ilike`: in any case"
    )


class TextSimilarity(Check):
    """How alike two texts are; OpenAI's ``text_similarity``."""

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
    ] = Field(default="fuzzy_match", description="how similarity is measured")


class EnvironmentReward(OnScale):
    """What the environment of an episode gave it, unless that broke."""

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
    own = getattr(value, "verifier", None)
    verifier = value.get("verifier") if isinstance(value, Mapping) else own
    known = isinstance(verifier, str) and verifier in WITH_SETTINGS
    return f"<{verifier}>" if known else _PLAIN


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


def _as_checks(value: Any) -> Any:
    """A name is a check without settings; one check stands for a list of one."""
    if value is None:
        return ()
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple({"verifier": each} if isinstance(each, str) else each for each in several)


Checks = Annotated[tuple[AnyCheck, ...], BeforeValidator(_as_checks)]


class Reward(Table):
    """The checks of a response, and the reward that they give.

    The reward of a response is its outcome's value plus the overlong punishment (DAPO,
    arXiv:2503.14476, equation 13): 0 up to ``max_tokens - overlong_buffer`` tokens, from there
    linearly down to ``-overlong_factor`` at ``max_tokens``. Correctness is the raw outcome's.
    """

    outcome: Checks = Field(
        default=(MathAnswer(),), min_length=1, description="checks that decide what is correct"
    )
    formula: str | None = Field(
        default=None,
        description="of the outcome's checks by name, as max(a, 0.5 * b), cut to [0, 1]; none: the "
        "weighted mean",
    )
    process: Checks = Field(default=(), description="checks of the steps")
    process_for: Literal["correct", "all"] = Field(
        default="correct", description="responses that get a process score"
    )
    max_ungradable: float = Field(
        default=0.05, ge=0, le=1, description="the job pauses above this share of missing scores"
    )
    values: tuple[float, float] = Field(
        default=(0.0, 1.0), description="reward of a wrong and of a right answer"
    )
    overlong_buffer: int | None = Field(
        default=None,
        ge=1,
        description="tokens before the limit over which DAPO's punishment grows; none: it is off",
    )
    overlong_factor: float = Field(
        default=1.0, gt=0, description="punishment at the limit, weight in `gdpo`"
    )
    overlong_filter: bool = Field(
        default=False, description="leave truncated responses out of the loss"
    )

    @model_validator(mode="after")
    def _pays_what_it_says(self) -> Self:
        if not self.values[0] < self.values[1]:
            raise ValueError("values must be [wrong, right] with wrong below right")
        if self.overlong_buffer is None and self.overlong_factor != 1.0:
            raise ValueError("overlong_factor does nothing without overlong_buffer; set that too")
        return self

    @model_validator(mode="after")
    def _checks_fit_together(self) -> Self:
        for field, checks in (("outcome", self.outcome), ("process", self.process)):
            labels = [check.label for check in checks]
            if len(set(labels)) < len(labels):
                raise ValueError(f"{field}: two checks have one name; give each a name of its own")
            if len(checks) == 1 and checks[0].if_ungradable == "leave_out":
                raise ValueError(f"{field}: the only check cannot be left out if it is ungradable")
            if checks and all(check.sees == "correct" for check in checks):
                raise ValueError(
                    f"{field}: some check must see all; for a process score of correct responses "
                    "alone set process_for = 'correct'"
                )
        if any(check.sees == "correct" for check in self.outcome):
            raise ValueError("outcome: what is correct is known only after it; set sees = 'all'")
        if self.process_for == "correct" and any(check.sees == "correct" for check in self.process):
            raise ValueError("process: sees = 'correct' does nothing with process_for = 'correct'")
        return self

    @model_validator(mode="after")
    def _formula_is_about_the_outcome(self) -> Self:
        if self.formula is None:
            return self
        try:
            used = read_formula(self.formula).names
        except FormulaError as error:
            raise ValueError(f"formula: {error}") from error
        labels = {check.label for check in self.outcome}
        if unknown := sorted(used - labels):
            known = ", ".join(sorted(labels))
            raise ValueError(f"formula: {unknown[0]!r} is none of the outcome's checks: {known}")
        if unused := sorted(labels - used):
            raise ValueError(f"formula: {unused[0]!r} is not used; use it, or leave it out")
        if any(check.weight != 1 or check.if_ungradable != "ungradable" for check in self.outcome):
            raise ValueError(
                "formula: beside it weight and if_ungradable of the outcome's checks do nothing; "
                "remove them"
            )
        return self

    @property
    def checks_of_a_judge(self) -> tuple[AskedOfAJudge, ...]:
        checks = (*self.outcome, *self.process)
        asked = [check for check in checks if isinstance(check, AskedOfAJudge)]
        left = (check for check in checks if isinstance(check, MathAnswer))
        return (*asked, *(ModelJudge() for check in left if check.unknown == "judge"))
