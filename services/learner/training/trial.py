"""A trial of model folders: does Weir compute and write what transformers computes and reads?

It takes seconds on a CPU, and runs no code of the folder. A small copy of each model (its config
with few layers and columns, every tensor random) is computed and written as in training.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from protocol.model_folder import CONFIG
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from services.learner.training.batching import collate
from services.learner.training.folders import stored, weights_of, write_folder
from services.learner.training.model_check import (
    SAFELY,
    UnsupportedModel,
    check_context,
    check_critic,
    is_of_machine,
    load_config,
    stored_names,
)
from services.learner.training.models import Critic, Policy, read_model
from services.learner.training.samples import Sample
from services.learner.training.sequence import ALONE

_LENGTHS = (6, 9)  # tokens of the samples, which lie in one row
_PROMPT = 2  # tokens of each that are a prompt
_ROWS = 512
_WIDTH = 96
_LAYERS = (2, 4, 8)
MOST_PARAMETERS = 300_000_000
_LOGITS = 8.0  # their standard deviation: what bends large ones must show
_GAP = 2e-3  # nats: a hundred times what rounding in float32 makes
_WIDTHS = re.compile(r"intermediate|ffn|inner_(dim|size)|d_ff")
_IDS = re.compile(r"vocab_size|_token_(id|index)$")
_RECOMPUTED = re.compile(r"inv_freq$|masked_bias$|\.attn\.bias$")  # in folders of old releases


def try_models(policy: Path, critic: Path | None, max_context: int) -> list[str]:
    """Try the folders of a job's models; returns warnings.

    Args:
        max_context: prompt and response, in tokens.

    Raises:
        UnsupportedModel: naming the folder or its file, what is wrong with it, and the remedy.
    """
    found = list(_Trial("model.path", policy, AutoModelForCausalLM).run(max_context))
    if critic is not None:
        check_critic(critic)
        found += _Trial("critic.path", critic, AutoModel).run(max_context)
    return found


@dataclass(frozen=True)
class _Trial:
    field: str  # of the recipe
    folder: Path
    loader: Any  # of a policy, or of a critic

    def run(self, max_context: int) -> Iterator[str]:
        config = load_config(self.field, self.folder)
        check_context(self.field, self.folder, config, max_context)
        with (
            _quietly(),
            torch.random.fork_rng(),
            TemporaryDirectory(prefix="weir-trial-") as place,
        ):
            torch.manual_seed(0)
            yield from self._compare_names()
            small = self._small_copy(config)
            if not small._supports_attention_backend:
                raise self._refusal(f"model_type = {config.model_type} has attention of its own")
            read = self._out_and_in(small, Path(place))
            with self._refusing("Weir cannot compute it"):
                gap = (_logprob_gap if _has_head(small) else _value_gap)(small, read)
        if not gap < _GAP:
            raise self._refusal(
                "for samples that lie in one row Weir computes other numbers than transformers "
                f"({gap:.1e} apart): attention is not causal within a sample, or logits are more "
                "than the head's product"
            )

    def _refusal(self, problem: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.field}: {self.folder}: {problem}; choose another model")

    @contextmanager
    def _refusing(self, problem: str) -> Iterator[None]:
        try:
            yield
        except UnsupportedModel:
            raise
        except Exception as error:  # whatever a library says of somebody's files
            if is_of_machine(error):
                raise
            words = " ".join(str(error).split())[:300]
            raise self._refusal(f"{problem}: {type(error).__name__}: {words}") from error

    def _compare_names(self) -> Iterator[str]:
        """The tensors of the folder, by their headers, with those that the model has."""
        with self._refusing("transformers cannot read it"):
            _, info = self.loader.from_pretrained(
                self.folder, device_map="meta", output_loading_info=True, **SAFELY
            )
        if missing := sorted(info["missing_keys"]):
            raise self._refusal(f"its files lack {_some(missing)}, which would be random")
        unread = sorted(n for n in info["unexpected_keys"] if not _RECOMPUTED.search(n))
        if unread and self.field == "model.path":
            yield (
                f"{self.field}: {self.folder}: transformers leaves out {_some(unread)}, so no "
                "published version and no export has them"
            )

    def _small_copy(self, config: PretrainedConfig) -> PreTrainedModel:
        names = _patterns(stored_names(self.folder))
        first: Exception | None = None
        with self._refusing("transformers cannot compute a small copy of it"):
            for narrows in (True, False):
                try:
                    copies = [small_config(config, each, narrows=narrows) for each in _LAYERS]
                    return self._random_model(copies, names)
                except Exception as error:
                    first = first or error
            assert first is not None
            raise first

    def _random_model(self, configs: list[PretrainedConfig], names: set[str]) -> PreTrainedModel:
        """By the first config whose model has all kinds of tensors that the folder has."""
        best: tuple[int, PretrainedConfig] | None = None
        for config in configs:
            with torch.device("meta"):
                empty = self.loader.from_config(config)
            if sum(p.numel() for p in empty.parameters()) > MOST_PARAMETERS:
                break
            known = len(_patterns(stored(empty, weights_of(empty))) & names)
            if best is None or known > best[0]:
                best = known, config
        if best is None:
            raise ValueError("it has too many parameters in a layer")
        model = self.loader.from_config(best[1], dtype=torch.float32).eval()
        randomize(model)
        return model

    def _out_and_in(self, small: PreTrainedModel, place: Path) -> PreTrainedModel:
        """Write and read it twice; returns it as training reads it."""
        start, out = place / "start", place / "out"
        with self._refusing("it cannot be written and read again"):
            write_folder(small, weights_of(small), self.folder, start)
            (start / CONFIG).write_text(small.config.to_json_string())
            read = read_model(self.loader, start, ALONE, torch.float32)
            write_folder(read, weights_of(read), start, out)
            again = self.loader.from_pretrained(out, **SAFELY)
            written, rewritten = _tensors_in(start), _tensors_in(out)
        for one, other in ((small, read), (read, again)):
            if lost := _differences(one.state_dict(), other.state_dict()):
                raise self._refusal(f"written and read again, {_some(lost)} is another")
        if lost := _differences(written, rewritten):
            raise self._refusal(f"its tensors {_some(lost)} would be others in an export")
        return read


def _has_head(model: PreTrainedModel) -> bool:
    return model.get_output_embeddings() is not None


def small_config(config: PretrainedConfig, layers: int, *, narrows: bool) -> PretrainedConfig:
    small = copy.deepcopy(config)
    for part in (small, *(each for each in vars(small).values() if _is_config(each))):
        _cut_layers(part, layers)
        for name, value in vars(part).copy().items():
            if _IDS.search(name) and isinstance(value, int):
                setattr(part, name, min(value, _ROWS - ("size" not in name)))
        if narrows:
            _narrow(part)
    return small


def _is_config(value: object) -> bool:
    return isinstance(value, PretrainedConfig)


def _cut_layers(config: PretrainedConfig, layers: int) -> None:
    """Keep the first layers, and as many more as have each kind that the config lists."""
    number = getattr(config, "num_hidden_layers", None)
    if not isinstance(number, int) or number <= layers:
        return
    lists = {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list | tuple | str)
        and len(value) == number
        and (not isinstance(value, str) or "pattern" in name)
    }
    kept = max([layers, *(1 + value.index(kind) for value in lists.values() for kind in value)])
    config.num_hidden_layers = kept
    for name, value in lists.items():
        setattr(config, name, value[:kept])


def _narrow(config: PretrainedConfig) -> None:
    heads = getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    if isinstance(heads, int) and isinstance(hidden, int):
        size = getattr(config, "head_dim", None) or hidden // heads
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        few = min(key_heads, 2)
        config.num_attention_heads = few * min(heads // key_heads, 2)
        if hasattr(config, "num_key_value_heads"):
            config.num_key_value_heads = few
        config.hidden_size = config.num_attention_heads * size
    for name, value in vars(config).copy().items():
        if _WIDTHS.search(name) and isinstance(value, int):
            setattr(config, name, min(value, _WIDTH))


def randomize(model: PreTrainedModel) -> None:
    """Every tensor that a folder has, and a head that makes logits as large as a trained one's."""
    with torch.no_grad():
        for weight in weights_of(model).values():
            if weight.is_floating_point():
                weight.normal_(std=weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.5)
        head = model.get_output_embeddings()
        if head is not None:
            logits = model(input_ids=_token_ids(model)[0][None], use_cache=False).logits
            cast(Tensor, head.weight).mul_(_LOGITS / logits.std())


def _token_ids(model: PreTrainedModel) -> list[Tensor]:
    rows = len(cast(Tensor, model.get_input_embeddings().weight))
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(rows, (length,), generator=generator) for length in _LENGTHS]


def _logprob_gap(small: PreTrainedModel, read: PreTrainedModel) -> float:
    ids = _token_ids(small)
    with torch.no_grad():
        own, _ = Policy(read, chunk_tokens=4)(_row_of(ids), 1.0)
        alone = [
            small(input_ids=each[None], use_cache=False).logits[0, _PROMPT - 1 : -1] for each in ids
        ]
    targets = torch.cat([each[_PROMPT:] for each in ids])
    theirs = torch.cat(alone).float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    return float((own - theirs).abs().max())


def _value_gap(small: PreTrainedModel, read: PreTrainedModel) -> float:
    ids = _token_ids(small)
    critic = Critic(read)
    with torch.no_grad():
        critic.head.weight.normal_()
        own = critic(_row_of(ids))
        states = [
            small(input_ids=each[None], use_cache=False).last_hidden_state[0, _PROMPT - 1 : -1]
            for each in ids
        ]
        return float((own - critic.head(torch.cat(states))[:, 0]).abs().max())


def _row_of(ids: list[Tensor]) -> Any:
    samples = []
    for group, each in enumerate(ids):
        own = len(each) - _PROMPT
        samples.append(
            Sample(
                prompt_ids=each[:_PROMPT].numpy().astype(np.int32),
                token_ids=each[_PROMPT:].numpy().astype(np.int32),
                behavior_logprobs=np.zeros(own, np.float32),
                on_version=np.ones(own, np.int32),
                advantage=0.0,
                reward=0.0,
                correct=False,
                group=group,
            )
        )
    return collate(samples)


def _tensors_in(folder: Path) -> dict[str, Tensor]:
    return {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}


def _differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    )


def _patterns(names: Any) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


@contextmanager
def _quietly() -> Iterator[None]:
    level, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shows_progress:
            logging.enable_progress_bar()
