"""The names that a recipe may give: each is an entry of a table in the service that uses it.

A name may have a dot, as ``my_lab.squared``: then it is an extension's, which a module of the
deployment's own has added to the table. ``WEIR_EXTENSIONS`` names the modules that add formulas,
``WEIR_GRADER_EXTENSIONS`` those that add verifiers. The services check a name when they meet it.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated

from pydantic import AfterValidator

GROUP_ADVANTAGES = (
    "grpo",
    "grpo_trl",
    "grpo_verl",
    "dr_grpo",
    "rloo",
    "papo",
    "papo_full_norm",
    "multiplicative",
    "process_only",
)
CRITIC_ADVANTAGES = ("gae", "decoupled_gae", "length_adaptive_gae")
OBJECTIVES = ("clip", "dual_clip", "gspo", "cispo")
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")
CORRECTIONS = ("none", "token_tis", "sequence_tis")
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
)
RUBRICS = ("holistic", "proof", "checkpoints")

_EXTENSION = re.compile(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)+")


def _one_of(*names: str, or_extension: bool = True) -> AfterValidator:
    def check(value: str) -> str:
        if value in names or (or_extension and _EXTENSION.fullmatch(value)):
            return value
        near = difflib.get_close_matches(value, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{value!r} is none of {', '.join(names)}{hint}")

    return AfterValidator(check)


AdvantageName = Annotated[str, _one_of(*GROUP_ADVANTAGES, *CRITIC_ADVANTAGES)]
ObjectiveName = Annotated[str, _one_of(*OBJECTIVES)]
AggregationName = Annotated[str, _one_of(*AGGREGATIONS)]
CorrectionName = Annotated[str, _one_of(*CORRECTIONS)]
DivergenceName = Annotated[str, _one_of(*DIVERGENCES)]
VerifierName = Annotated[str, _one_of(*VERIFIERS)]
RubricName = Annotated[str, _one_of(*RUBRICS, or_extension=False)]
