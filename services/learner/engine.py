"""The training engine: a Hugging Face causal LM under DeepSpeed. The only file that imports it.

Every rank calls every method, in the same order. The update does not depend on how samples are
split: the loss of a micro-batch is ``world_size x its share of the global mean``, which DeepSpeed
averages over ranks and sums over micro-batches; its own accumulation stays at 1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
from protocol.recipe import Recipe
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.algorithms import pick
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.logprobs import token_logprobs
from services.learner.algorithms.objectives import OBJECTIVES, TokenBatch
from services.learner.batching import MicroBatch, collate, micro_batches, mini_batches, num_tokens
from services.learner.samples import Sample

_TAG = "engine"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GATHER_ELEMENTS = 500_000_000


class LogprobModel(nn.Module):
    """The policy as the training step sees it: log-probability and entropy per response token.

    The head runs inside the wrapped module, where ZeRO-3 has gathered its weights, and only for the
    positions that predict a response token.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """([token] log-probs, [token] entropies), both in nats, of the batch's targets."""
        hidden = self.model.base_model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
        ).last_hidden_state  # [sample, position, hidden]
        head = cast(nn.Module, self.model.get_output_embeddings())
        logits = head(hidden[batch.rows, batch.columns])  # [token, vocabulary]
        return token_logprobs(logits, batch.targets, temperature)


@dataclass
class Sums:
    """What a training step adds up over tokens; all-reduced once, then divided."""

    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    mismatch: float = 0.0  # behaviour minus trained log-prob, the k1 estimate of their divergence
    parity_tokens: float = 0.0
    parity_abs: float = 0.0

    def means(self) -> dict[str, float]:
        """Per-token means, and what parity was measured on."""
        tokens = max(1.0, self.tokens)
        return {
            "loss": self.loss / tokens,
            "entropy": self.entropy / tokens,
            "clip_fraction": (self.clipped_low + self.clipped_high) / tokens,
            "clip_fraction_low": self.clipped_low / tokens,
            "clip_fraction_high": self.clipped_high / tokens,
            "mismatch_kl": self.mismatch / tokens,
            "parity_tokens": self.parity_tokens,
            "parity_mean": self.parity_abs / max(1.0, self.parity_tokens),
        }


@dataclass
class StepMetrics:
    """Collects a step's metrics on this rank, without a synchronization per micro-batch."""

    sums: Sums = field(default_factory=Sums)
    parity_max: float = 0.0
    grad_norms: list[float] = field(default_factory=list)

    def reduced(self, device: torch.device) -> dict[str, float]:
        """The metrics over all ranks."""
        sums = torch.tensor(list(vars(self.sums).values()), dtype=torch.float64, device=device)
        parity_max = torch.tensor(self.parity_max, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(sums)
        torch.distributed.all_reduce(parity_max, op=torch.distributed.ReduceOp.MAX)
        metrics = Sums(*sums.tolist()).means() | {"parity_max": parity_max.item()}
        if self.grad_norms:
            metrics["grad_norm"] = sum(self.grad_norms) / len(self.grad_norms)
        return metrics


class TrainingEngine:
    """One policy, its optimizer, and the step that improves it."""

    def __init__(self, model_folder: Path, recipe: Recipe) -> None:
        self.recipe = recipe
        self.model_folder = model_folder
        self.rank = torch.distributed.get_rank()
        self.num_ranks = torch.distributed.get_world_size()
        self.updates = 0
        algorithm = recipe.algorithm.model_dump()
        self.objective = pick(OBJECTIVES, recipe.algorithm.objective, algorithm)
        self.aggregation = pick(AGGREGATIONS, recipe.algorithm.aggregation, algorithm)
        self.model = load_model(model_folder, _DTYPES[recipe.model.dtype])
        self.engine = _with_deepspeed(LogprobModel(self.model), recipe, self.num_ranks)
        self.device = cast(torch.device, self.engine.device)

    def train(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One training step: an optimizer update per mini-batch. Returns metrics over all ranks."""
        metrics = StepMetrics()
        for index, mini_batch in enumerate(
            mini_batches(samples, self.recipe.training.updates_per_batch)
        ):
            self._update(mini_batch, metrics, check_parity=index == 0)
        return metrics.reduced(self.device)

    def _update(self, samples: list[Sample], metrics: StepMetrics, *, check_parity: bool) -> None:
        """One optimizer update on a mini-batch, the same on any number of ranks."""
        total = num_tokens(samples)
        mine = self._my_share(samples)
        self._set_learning_rate()
        for position, part in enumerate(mine):
            self.engine.set_gradient_accumulation_boundary(position == len(mine) - 1)
            batch = collate(part).to(self.device)
            loss = self._loss(batch, total, metrics, check_parity)
            self.engine.backward(loss * self.num_ranks)
        self.engine.step()
        self.updates += 1
        norm = self.engine.get_global_grad_norm()
        if norm is not None:
            metrics.grad_norms.append(float(norm))

    def _loss(
        self, batch: MicroBatch, total_tokens: int, metrics: StepMetrics, check_parity: bool
    ) -> Tensor:
        logprobs, entropy = self.engine(batch, self.recipe.rollout.sampling.temperature)
        tokens = TokenBatch(logprobs, batch.behavior_logprobs, batch.advantages)
        losses = self.objective(tokens)  # [token]
        self._note(metrics, batch, tokens, losses, entropy, check_parity)
        # The second term keeps every parameter in the graph of an empty micro-batch.
        return self.aggregation(losses, num_tokens=total_tokens) + 0.0 * logprobs.sum()

    def score(self, samples: Sequence[Sample], temperature: float) -> dict[str, float]:
        """Compare this policy's log-probs with the behaviour log-probs, without training."""
        metrics = StepMetrics()
        self.engine.eval()
        with torch.no_grad():
            for part in self._my_share(samples):
                batch = collate(part).to(self.device)
                logprobs, _ = self.engine(batch, temperature)
                _note_parity(metrics, batch, logprobs)
        self.engine.train()
        reduced = metrics.reduced(self.device)
        return {name: reduced[name] for name in ("parity_max", "parity_mean", "parity_tokens")}

    def save(self, folder: Path) -> None:
        """Save parameters and optimizer state; `load` on as many ranks restores them exactly."""
        self.engine.save_checkpoint(
            str(folder), tag=_TAG, client_state={"updates": self.updates}, save_latest=False
        )

    def load(self, folder: Path) -> None:
        """Restore what `save` saved."""
        path, client_state = self.engine.load_checkpoint(str(folder), tag=_TAG)
        if path is None:
            raise FileNotFoundError(f"{folder / _TAG}: no checkpoint of the engine")
        self.updates = client_state["updates"]

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder; only rank 0 writes, all ranks gather."""
        state = self._gathered_state()
        if self.rank == 0:
            _copy_all_but_weights(self.model_folder, folder)
            self.model.save_pretrained(folder, state_dict=state)

    def _my_share(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        parts = micro_batches(samples, self.recipe.training.micro_batch_tokens, self.num_ranks)
        return parts[self.rank :: self.num_ranks]

    def _set_learning_rate(self) -> None:
        settings = self.recipe.optimizer
        warm = min(1.0, (self.updates + 1) / max(1, settings.warmup_steps))
        for group in self.engine.optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm

    def _note(
        self,
        metrics: StepMetrics,
        batch: MicroBatch,
        tokens: TokenBatch,
        losses: Tensor,
        entropy: Tensor,
        check_parity: bool,
    ) -> None:
        with torch.no_grad():
            sums, ratio, settings = metrics.sums, tokens.ratio, self.recipe.algorithm
            up, down = batch.advantages > 0, batch.advantages < 0
            sums.tokens += batch.num_tokens
            sums.loss += losses.sum().item()
            sums.entropy += entropy.sum().item()
            sums.clipped_high += (up & (ratio > 1 + settings.clip_high)).sum().item()
            sums.clipped_low += (down & (ratio < 1 - settings.clip_low)).sum().item()
            sums.mismatch += (tokens.behavior_logprobs - tokens.logprobs).sum().item()
            if check_parity:
                _note_parity(metrics, batch, tokens.logprobs)

    def _gathered_state(self) -> dict[str, Tensor]:
        """All parameters in full, on the CPU of rank 0; under ZeRO-3 gathered bucket by bucket."""
        named = dict(self.model.named_parameters())
        state: dict[str, Tensor] = {}
        for bucket in _buckets(named):
            sharded = self.recipe.optimizer.zero_stage == 3
            gathering = deepspeed.zero.GatheredParameters([p for _, p in bucket], enabled=sharded)
            with gathering if sharded else nullcontext():
                if self.rank == 0:
                    # The gathered storage is freed with the context, so the copy is needed.
                    state |= {name: p.detach().to("cpu", copy=True) for name, p in bucket}
        return state


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal LM from a Hugging Face folder, safetensors only, in training mode."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    model.train()
    return model


def init_ranks() -> None:
    """Join the process group that torchrun describes, or be a group of one."""
    # DeepSpeed would compile a shared-memory collective for a minute; gloo's own does.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.distributed.is_torchelastic_launched():
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed looks for it
        torch.distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)


def _with_deepspeed(module: nn.Module, recipe: Recipe, num_ranks: int) -> Any:
    settings = recipe.optimizer
    optimizer = torch.optim.AdamW(
        module.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": num_ranks,
        "gradient_clipping": settings.max_grad_norm,
        "zero_optimization": {"stage": settings.zero_stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": recipe.model.dtype == "bfloat16"},
        "fp16": {"enabled": recipe.model.dtype == "float16"},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    return engine


def _note_parity(metrics: StepMetrics, batch: MicroBatch, logprobs: Tensor) -> None:
    gaps = (logprobs.detach() - batch.behavior_logprobs).abs()[batch.on_version]
    if gaps.numel():
        metrics.sums.parity_tokens += gaps.numel()
        metrics.sums.parity_abs += gaps.sum().item()
        metrics.parity_max = max(metrics.parity_max, gaps.max().item())


def _buckets(named: dict[str, nn.Parameter]) -> list[list[tuple[str, nn.Parameter]]]:
    buckets: list[list[tuple[str, nn.Parameter]]] = [[]]
    elements = 0
    for name, parameter in named.items():
        size = int(getattr(parameter, "ds_numel", parameter.numel()))
        if buckets[-1] and elements + size > _GATHER_ELEMENTS:
            buckets.append([])
            elements = 0
        buckets[-1].append((name, parameter))
        elements += size
    return buckets


def _copy_all_but_weights(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    weights: Callable[[Path], bool] = lambda path: ".safetensors" in path.name  # noqa: E731
    for path in source.iterdir():
        if path.is_file() and not weights(path) and path.suffix != ".bin":
            shutil.copy(path, target / path.name)
