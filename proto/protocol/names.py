"""The base class of a recipe's tables, and the names of formulas, verifiers and rubrics.

A name with a dot, such as ``my_lab.squared``, comes from an extension of the deployment.
``WEIR_EXTENSIONS`` lists the modules that add formulas, ``WEIR_GRADER_EXTENSIONS`` those that add
verifiers. The services check such a name when they use it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator


class Table(BaseModel):
    """A table of a recipe without unknown keys, infinite numbers, or integers over 64 bits."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_of_64_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("a whole number must have at most 64 bits")
        return value


def _check_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("no path can contain the character NUL; remove it")
    return path


PathText = Annotated[str, AfterValidator(_check_path)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TemplateOptions = dict[_Variable, bool | _Int64 | str]  # of a chat template


@dataclass(frozen=True)
class Formula:
    """The requirements and settings of a formula."""

    takes: tuple[str, ...] = ()  # settings of [algorithm] that not all formulas read
    needs_process: bool = False  # whether it reads process scores
    compares: bool = False  # whether it needs several responses


_STANDARDIZED = ("ddof", "denominator", "std_eps")
_PAPO = ("lambda_process", *_STANDARDIZED)
GROUP_ADVANTAGES = {
    "grpo": Formula(_STANDARDIZED, compares=True),
    "grpo_trl": Formula(compares=True),
    "grpo_verl": Formula(),
    "dr_grpo": Formula(compares=True),
    "rloo": Formula(compares=True),
    "reinforce": Formula(),
    "grpo_batch": Formula(compares=True),
    "max_rl": Formula(compares=True),
    "gdpo": Formula(compares=True),
    "papo": Formula(_PAPO, needs_process=True, compares=True),
    "papo_full_norm": Formula(_PAPO, needs_process=True, compares=True),
    "multiplicative": Formula(needs_process=True),
    "process_only": Formula(needs_process=True),
}
CRITIC_ADVANTAGES = {
    "gae": Formula(("gamma", "lambda_actor")),
    "decoupled_gae": Formula(("gamma", "lambda_actor", "lambda_critic")),
    "length_adaptive_gae": Formula(("gamma", "lambda_critic", "length_alpha")),
}
_CLIPS = ("clip_low", "clip_high")
OBJECTIVES = {
    "clip": Formula(_CLIPS),
    "dual_clip": Formula((*_CLIPS, "dual_clip")),
    "gspo": Formula(_CLIPS),
    "cispo": Formula(_CLIPS),
    "dppo": Formula(_CLIPS),
    "ipo": Formula(_CLIPS),
    "gmpo": Formula(_CLIPS),
    "sapo": Formula(("tau_positive", "tau_negative")),
}
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")
_BAND = ("correction_floor", "correction_cap")
CORRECTIONS = {
    "none": Formula(),
    "token_tis": Formula(("correction_cap",)),
    "sequence_tis": Formula(("correction_cap",)),
    "token_mis": Formula(_BAND),
    "sequence_mis": Formula(_BAND),
}
DIVERGENCES = ("k1", "k2", "k3")
VERIFIERS = (
    "math_answer",
    "equation_steps",
    "model_judge",
    "score_model",
    "label_model",
    "string_check",
    "text_similarity",
    "python",
    "environment",
)
RUBRICS = ("holistic", "proof", "checkpoints")

_EXTENSION = re.compile(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)+")


def _choice(*names: str, or_extension: bool = True) -> AfterValidator:
    def check(value: str) -> str:
        if value in names or (or_extension and _EXTENSION.fullmatch(value)):
            return value
        near = difflib.get_close_matches(value, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{value!r} is none of {', '.join(names)}{hint}")

    return AfterValidator(check)


AdvantageName = Annotated[str, _choice(*GROUP_ADVANTAGES, *CRITIC_ADVANTAGES)]
ObjectiveName = Annotated[str, _choice(*OBJECTIVES)]
AggregationName = Annotated[str, _choice(*AGGREGATIONS)]
CorrectionName = Annotated[str, _choice(*CORRECTIONS)]
DivergenceName = Annotated[str, _choice(*DIVERGENCES)]
VerifierName = Annotated[str, _choice(*VERIFIERS)]
RubricName = Annotated[str, _choice(*RUBRICS, or_extension=False)]
