"""A trial of model folders: compare computing and writing with transformers.

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

from services.learner.training.attention import mixes_in_attention
from services.learner.training.batching import collate
from services.learner.training.folders import module_weights, to_stored, write_folder
from services.learner.training.model_check import (
    SAFELY,
    UnsupportedModel,
    check_context,
    check_critic,
    is_machine_error,
    load_config,
    stored_names,
)
from services.learner.training.models import Critic, Policy, read_model
from services.learner.training.samples import Sample
from services.learner.training.sequence import ALONE

_LENGTHS = (6, 9, 7)  # tokens of the samples in one row; the last has the prompt of the first
_PROMPT = 2  # tokens of each prompt
_ROWS = 512
_WIDTH = 96
_LAYERS = (2, 4, 8)
MAX_PARAMETERS = 300_000_000
_LOGITS_STD = 8.0  # large, so that a function of large logits has an effect
_MAX_GAP = 2e-3  # nats: a hundred times the rounding in float32
_WIDTHS = re.compile(r"intermediate|ffn|inner_(dim|size)|d_ff")
_IDS = re.compile(r"vocab_size|_token_(id|index)$")
_RECOMPUTED = re.compile(r"inv_freq$|masked_bias$|\.attn\.bias$")  # in folders of old releases


def try_models(policy: Path, critic: Path | None, max_context: int) -> list[str]:
    """Try the folders of a job's models; return warnings.

    Args:
        max_context: prompt and response, in tokens.

    Raises:
        UnsupportedModel: naming the folder or its file, the problem and the remedy.
    """
    remarks = list(_Trial("model.path", policy, AutoModelForCausalLM).run(max_context))
    if critic is not None:
        check_critic(critic)
        remarks += _Trial("critic.path", critic, AutoModel).run(max_context)
    return remarks


@dataclass(frozen=True)
class _Trial:
    field: str  # of the recipe
    folder: Path
    loader: Any  # AutoModelForCausalLM for a policy, AutoModel for a critic

    def run(self, max_context: int) -> Iterator[str]:
        config = load_config(self.field, self.folder)
        check_context(self.field, self.folder, config, max_context)
        with (
            _silenced(),
            torch.random.fork_rng(),
            TemporaryDirectory(prefix="weir-trial-") as temporary,
        ):
            torch.manual_seed(0)
            yield from self._compare_names()
            small = self._small_copy(config)
            if not small._supports_attention_backend:
                raise self._refusal(f"model_type = {config.model_type} has attention of its own")
            read = self._write_and_read(small, Path(temporary))
            with self._refusing("Weir cannot compute it"):
                gap = (_logprob_gap if _has_logits(small) else _value_gap)(small, read)
        if not gap < _MAX_GAP:
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
        except Exception as error:  # libraries raise any type for files of a user
            if is_machine_error(error):
                raise
            words = " ".join(str(error).split())[:300]
            raise self._refusal(f"{problem}: {type(error).__name__}: {words}") from error

    def _compare_names(self) -> Iterator[str]:
        """Compare the tensors in the folder's headers with those of the model."""
        with self._refusing("transformers cannot read it"):
            _, info = self.loader.from_pretrained(
                self.folder, device_map="meta", output_loading_info=True, **SAFELY
            )
        if missing := sorted(info["missing_keys"]):
            raise self._refusal(f"its files lack {_first_name(missing)}, which would be random")
        unread = sorted(name for name in info["unexpected_keys"] if not _RECOMPUTED.search(name))
        if unread and self.field == "model.path":
            yield (
                f"{self.field}: {self.folder}: transformers leaves out {_first_name(unread)}, so "
                "no published version and no export has them"
            )

    def _small_copy(self, config: PretrainedConfig) -> PreTrainedModel:
        names = _patterns(stored_names(self.folder))
        first: Exception | None = None
        with self._refusing("transformers cannot compute a small copy of it"):
            for narrows in (True, False):
                try:
                    copies = [small_config(config, layers, narrows=narrows) for layers in _LAYERS]
                    return self._random_model(copies, names)
                except Exception as error:
                    first = first or error
            assert first is not None
            raise first

    def _random_model(self, configs: list[PretrainedConfig], names: set[str]) -> PreTrainedModel:
        """Make a random model by the config with most kinds of tensors of the folder."""
        best: tuple[int, PretrainedConfig] | None = None
        for config in configs:
            with torch.device("meta"):
                empty = self.loader.from_config(config)
            if sum(weight.numel() for weight in empty.parameters()) > MAX_PARAMETERS:
                break
            num_kinds = len(_patterns(to_stored(empty, module_weights(empty))) & names)
            if best is None or num_kinds > best[0]:
                best = num_kinds, config
        if best is None:
            raise ValueError("it has too many parameters in a layer")
        model = self.loader.from_config(best[1], dtype=torch.float32).eval()
        randomize(model)
        return model

    def _write_and_read(self, small: PreTrainedModel, temporary: Path) -> PreTrainedModel:
        """Write and read it twice; return the model that training reads."""
        start = temporary / "start"
        out = temporary / "out"
        with self._refusing("it cannot be written and read again"):
            write_folder(small, module_weights(small), self.folder, start)
            (start / CONFIG).write_text(small.config.to_json_string())
            read = read_model(self.loader, start, ALONE, torch.float32)
            write_folder(read, module_weights(read), start, out)
            again = self.loader.from_pretrained(out, **SAFELY)
            written = _load_tensors(start)
            rewritten = _load_tensors(out)
        for before, after in ((small, read), (read, again)):
            if lost := _differences(before.state_dict(), after.state_dict()):
                raise self._refusal(f"written and read again, {_first_name(lost)} differs")
        if lost := _differences(written, rewritten):
            raise self._refusal(f"its tensors {_first_name(lost)} would differ in an export")
        return read


def _has_logits(model: PreTrainedModel) -> bool:
    return model.get_output_embeddings() is not None


def small_config(config: PretrainedConfig, layers: int, *, narrows: bool) -> PretrainedConfig:
    small = copy.deepcopy(config)
    for part in (small, *filter(_is_config, vars(small).values())):
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
    """Keep the first layers, and more until each kind in the config's lists is included."""
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
    needed = [1 + value.index(kind) for value in lists.values() for kind in value]
    num_layers = max([layers, *needed])
    config.num_hidden_layers = num_layers
    for name, value in lists.items():
        setattr(config, name, value[:num_layers])


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
    """Randomize every tensor, with a head whose logits are as large as a trained one's."""
    with torch.no_grad():
        for weight in module_weights(model).values():
            if weight.is_floating_point():
                weight.normal_(std=weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.5)
        head = model.get_output_embeddings()
        if head is not None:
            logits = model(input_ids=_token_ids(model)[0][None], use_cache=False).logits
            cast(Tensor, head.weight).mul_(_LOGITS_STD / logits.std())


def _token_ids(model: PreTrainedModel) -> list[Tensor]:
    rows = len(cast(Tensor, model.get_input_embeddings().weight))
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(rows, (length,), generator=generator) for length in _LENGTHS]
    ids[-1][:_PROMPT] = ids[0][:_PROMPT]
    return ids


def _logprob_gap(small: PreTrainedModel, read: PreTrainedModel) -> float:
    ids = _token_ids(small)
    with torch.no_grad():
        packed, _ = Policy(read, chunk_tokens=4)(_make_row(ids, read.config), 1.0)
        logits = [
            small(input_ids=sample[None], use_cache=False).logits[0, _PROMPT - 1 : -1]
            for sample in ids
        ]
    targets = torch.cat([sample[_PROMPT:] for sample in ids])
    expected = torch.cat(logits).float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    return float((packed - expected).abs().max())


def _value_gap(small: PreTrainedModel, read: PreTrainedModel) -> float:
    ids = _token_ids(small)
    critic = Critic(read)
    with torch.no_grad():
        critic.head.weight.normal_()
        packed = critic(_make_row(ids, read.config))
        states = [
            small(input_ids=sample[None], use_cache=False).last_hidden_state[0, _PROMPT - 1 : -1]
            for sample in ids
        ]
        return float((packed - critic.head(torch.cat(states))[:, 0]).abs().max())


def _make_row(ids: list[Tensor], config: PretrainedConfig) -> Any:
    samples = []
    for group, sample_ids in enumerate(ids):
        length = len(sample_ids) - _PROMPT
        samples.append(
            Sample(
                prompt_ids=sample_ids[:_PROMPT].numpy().astype(np.int32),
                token_ids=sample_ids[_PROMPT:].numpy().astype(np.int32),
                behavior_logprobs=np.zeros(length, np.float32),
                on_version=np.ones(length, np.int32),
                advantage=0.0,
                reward=0.0,
                correct=False,
                group=group,
            )
        )
    return collate(samples, shares_prompts=mixes_in_attention(config))


def _load_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def _differences(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    different = first.keys() ^ second.keys()
    for name in first.keys() & second.keys():
        if not torch.equal(first[name], second[name]):
            different.add(name)
    return sorted(different)


def _patterns(names: Any) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def _first_name(names: list[str]) -> str:
    suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{suffix}"


@contextmanager
def _silenced() -> Iterator[None]:
    level = logging.get_verbosity()
    shows_progress = logging.is_progress_bar_enabled()
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
