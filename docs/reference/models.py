"""``python -m docs.reference.models``: write ``docs/reference/models.md``; ten minutes.

A small random model of each causal type of transformers, from its default config, is tried.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from services.learner.training.model_check import UnsupportedModel
from services.learner.training.trial import MAX_PARAMETERS, randomize, small_config, try_models

PAGE = Path(__file__).with_suffix(".md")
_TABLE = re.compile(r"(<!-- types -->\n).*(<!-- /types -->)", re.DOTALL)
_MAX_S = 120
_CONTEXT = 16
TRAINED = "Trained"
REFUSED = "Refused"
NOT_BUILT = "Not tried"


def main() -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    signal.signal(signal.SIGALRM, _time_out)
    types: dict[str, list[str]] = {TRAINED: [], REFUSED: [], NOT_BUILT: []}
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        types[_verdict(model_type)].append(f"`{model_type}`")
    lines = [f"**{name}, {len(ids)}:** {', '.join(ids)}.\n\n" for name, ids in types.items()]
    PAGE.write_text(_TABLE.sub(rf"\g<1>\n{''.join(lines)}\g<2>", PAGE.read_text()))


def _verdict(model_type: str) -> str:
    with TemporaryDirectory() as folder:
        signal.alarm(_MAX_S)
        try:
            _small_model(model_type).save_pretrained(folder)
        except Exception:  # the default config does not build a model
            signal.alarm(0)
            return NOT_BUILT
        try:
            try_models(Path(folder), None, _CONTEXT)
        except (UnsupportedModel, TimeoutError):
            return REFUSED
        finally:
            signal.alarm(0)
    return TRAINED


def _small_model(model_type: str) -> Any:
    for narrows in (True, False):
        config = small_config(AutoConfig.for_model(model_type), 3, narrows=narrows)
        try:
            with torch.device("meta"):
                empty = AutoModelForCausalLM.from_config(config)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            continue
        if sum(parameter.numel() for parameter in empty.parameters()) < MAX_PARAMETERS:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            randomize(model)
            return model
    raise ValueError("it has no small copy")


def _time_out(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
