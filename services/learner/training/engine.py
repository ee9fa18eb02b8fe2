"""A model under DeepSpeed: its optimizer, its shards, its checkpoints. The one door to DeepSpeed.

Every rank calls every method, in the same order. An update does not depend on how samples are
split: the loss of a micro-batch is ``num_ranks x its share of the global mean``, which DeepSpeed
averages over ranks and sums over micro-batches; its own accumulation stays at 1.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from deepspeed.utils import logger
from protocol.operations import AdamW
from protocol.recipe import Model, Optimizer
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from services.learner.training.host_copies import HostCopies
from services.learner.training.shares import buckets, size_of

P = TypeVar("P")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_UNFINISHED = ".unfinished-"  # the beginning of names that a next attempt removes
_POLL_S = 0.2
_REDUCE_BUCKET = 500_000_000  # DeepSpeed's default, in numbers; it is allocated whole


class Engine:
    """A trainable module: called for its forward pass, improved by `update`."""

    def __init__(self, module: nn.Module, settings: Optimizer, model: Model) -> None:
        self.module = module
        self.settings = settings
        self.num_ranks = torch.distributed.get_world_size()
        self.updates = 0
        self._rehearses = False
        self.last_update: int | None = None  # by it the learning rate falls to 0, linearly
        self._engine = _with_deepspeed(module, settings, model)
        self.device = device_of_rank()

    def __call__(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def update(self, parts: Sequence[P], loss_of: Callable[[P], Tensor]) -> float:
        """One optimizer update; returns the norm of the gradient before it was clipped.

        If the loss or the gradient is not finite on any rank, the norm is infinite and there is no
        update: parameters and the optimizer's state stay as they are, bit for bit.

        Args:
            parts: this rank's micro-batches, on every rank as many.
            loss_of: a micro-batch's share of the loss, scalar: over all ranks they add up to it.
        """
        self._set_learning_rate()
        for position, part in enumerate(parts):
            self._backward(loss_of(part), is_last=position == len(parts) - 1)
        return self._step()

    def accumulate(self, parts: Sequence[P], loss_of: Callable[[P], Tensor]) -> None:
        """Add the gradient of micro-batches to that which `step` will take; as `update` does."""
        for part in parts:
            self._backward(loss_of(part), is_last=False)

    def step(self, adam: AdamW, nothing: Tensor) -> float:
        """`update` by the gradient that has added up, with settings of its own.

        Args:
            adam: of this step; without ``max_grad_norm`` the gradient is not clipped.
            nothing: a loss without a gradient, in whose graph every parameter is.
        """
        self._backward(nothing, is_last=True)
        for group in self._engine.optimizer.param_groups:
            betas = (adam.beta1, adam.beta2)
            group |= {"lr": adam.learning_rate, "betas": betas}
            group |= {"eps": adam.eps, "weight_decay": adam.weight_decay}
        self._engine._config.gradient_clipping = adam.max_grad_norm
        if hasattr(self._engine.optimizer, "clip_grad"):
            self._engine.optimizer.clip_grad = adam.max_grad_norm
        return self._step()

    def _backward(self, loss: Tensor, *, is_last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(is_last)
        loss = loss * math.nan if self._rehearses else loss
        self._engine.backward(_or_no_gradient(loss) * self.num_ranks)

    def _step(self) -> float:
        norm = self._step_if_finite()
        self.updates += math.isfinite(norm)
        return norm

    def _step_if_finite(self) -> float:
        """DeepSpeed's optimizers make no step of a gradient whose norm is not finite, on any rank.

        Without ZeRO and in float32 it has none of its own, and torch's makes one of any gradient;
        there the gradient is reduced by now, so that all ranks see the same norm.
        """
        if isinstance(self._engine.optimizer, torch.optim.Optimizer):
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            norm = float(nn.utils.get_total_norm(gradients))
            if not math.isfinite(norm):
                self._engine.zero_grad()
                return math.inf
            self._engine.step()
            return norm
        self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        if not math.isfinite(norm) and self.settings.offload != "none":
            # DeepSpeed forgets them everywhere else; here the next update would be made of them.
            self._engine.optimizer.averaged_gradients.clear()
        return norm

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Updates within take the time and memory of real ones, but have no finite gradient.

        Room is kept for AdamW's moments, two float32 per parameter, which its first step allocates.
        """
        elements = sum(size_of(p) for p in self.module.parameters() if p.requires_grad)
        share = self.num_ranks if self.settings.zero_stage > 0 else 1
        place = self.device if self.settings.offload == "none" else "cpu"
        # Written to, or the host would not count it.
        moments = torch.ones(2 * elements // share, dtype=torch.float32, device=place)
        self._rehearses = True
        level = logger.level
        logger.setLevel(logging.ERROR)  # or DeepSpeed would tell that it skips a step
        yield
        logger.setLevel(level)
        self._rehearses = False
        del moments

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Forward passes within neither learn nor drop out."""
        self._engine.eval()
        with torch.no_grad():
            yield
        self._engine.train()

    def save(self, folder: Path, tag: str, aside: HostCopies) -> None:
        """Copy parameters and optimizer state aside, from where they are written into a folder.

        `load` restores them exactly, on any ranks.
        """
        files = self._engine.checkpoint_engine
        save, files.save = files.save, aside.instead_of(files.save)
        try:
            self._engine.save_checkpoint(
                str(folder),
                tag=tag,
                client_state={"updates": self.updates},
                save_latest=False,
                exclude_frozen_parameters=True,
            )
        finally:
            files.save = save

    def own_weights(self) -> list[Tensor]:
        """This rank's part of each weight that is trained, where it lies between steps."""
        if self.settings.zero_stage == 3:
            self._engine.empty_partition_cache()  # small ones stay whole, as they were
        trained = (p for p in self.module.parameters() if p.requires_grad)
        return [getattr(p, "ds_tensor", p.data) for p in trained]

    def load(self, folder: Path, tag: str, *, with_optimizer: bool = True) -> None:
        """Restore what `save` saved, on as many ranks or on another number of them.

        Raises:
            FileNotFoundError: if there is nothing under this tag.
        """
        shards = len(list((folder / tag).glob("*_optim_states.pt")))  # none without ZeRO
        with _plainly_named(folder.parent) as place:
            checkpoint = place / folder.name / tag
            if shards in (0, self.num_ranks):
                self._load(checkpoint)
            else:
                with _for_any_ranks(checkpoint) as universal:
                    self._engine._config.load_universal_checkpoint = True
                    self._load(universal)
        if not with_optimizer:
            self._forget_moments()

    def _load(self, checkpoint: Path) -> None:
        is_whole = all(parameter.requires_grad for parameter in self.module.parameters())
        path, client_state = self._engine.load_checkpoint(
            str(checkpoint.parent),
            tag=checkpoint.name,
            load_module_strict=is_whole,
        )
        if path is None:
            raise FileNotFoundError(f"{checkpoint.resolve()}: no checkpoint of the engine")
        self.updates = client_state["updates"]

    def _forget_moments(self) -> None:
        """As before the first step; DeepSpeed loads no weights alone under ZeRO-3."""
        optimizer = self._engine.optimizer
        for state in getattr(optimizer, "optimizer", optimizer).state.values():
            for moment in state.values():
                moment.zero_()

    def gathered(self, weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Weights of the module, bucket by bucket, each whole on every rank.

        Under ZeRO-3 only until the next one is asked for. Every rank has to ask for all of them.
        """
        sharded = self.settings.zero_stage == 3
        for bucket in buckets(weights):
            gathering = deepspeed.zero.GatheredParameters([*bucket.values()], enabled=sharded)
            with gathering if sharded else nullcontext():
                yield bucket

    def state_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of the module, in full on the CPU of rank 0; elsewhere none."""
        state: dict[str, Tensor] = {}
        for bucket in self.gathered(weights):
            if torch.distributed.get_rank() == 0:
                # The gathered storage is freed with the bucket, so the copy is needed.
                state |= {name: w.detach().to("cpu", copy=True) for name, w in bucket.items()}
        return state

    def _set_learning_rate(self) -> None:
        warmup = self.settings.warmup_steps
        factor = min(1.0, (self.updates + 1) / max(1, warmup))
        if self.last_update is not None:
            left = (self.last_update - self.updates) / max(1, self.last_update - warmup)
            factor = min(factor, left)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * factor


class FrozenModel:
    """A module that is only asked, sharded over the ranks where the trained one is."""

    def __init__(self, module: nn.Module, settings: Optimizer, model: Model) -> None:
        module.requires_grad_(requires_grad=False)
        if settings.zero_stage == 3:
            config = _config(settings, model)
            self._module, *_ = deepspeed.initialize(model=module, config=config)
        else:
            self._module = module.to(device_of_rank())
        self._module.eval()

    def __call__(self, *inputs: Any) -> Any:
        with torch.no_grad():
            return self._module(*inputs)


def _or_no_gradient(loss: Tensor) -> Tensor:
    """A loss as it is; one that is not finite with a gradient that is no number anywhere.

    Backward would otherwise make a finite one of it where a formula has cut the gradient off.
    """
    return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan).to(loss.dtype)


def init_ranks() -> None:
    """Join the process group that torchrun describes, or be a group of one."""
    # DeepSpeed would compile a shared-memory collective for a minute; gloo's own does.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed looks for it
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        # Before anything else touches a GPU: NCCL binds a communicator to the current one.
        torch.cuda.set_device(device_of_rank())
    if torch.distributed.is_torchelastic_launched():
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    else:
        torch.distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)


def leave_ranks() -> None:
    """Leave the process group; without it a thread of torch may abort the process as it exits."""
    torch.distributed.destroy_process_group()


def device_of_rank() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def name_of_device() -> str:
    """What the driver calls this rank's GPU; empty without one."""
    return torch.cuda.get_device_name(device_of_rank()) if torch.cuda.is_available() else ""


def ulysses_attention(
    attention: Callable[..., Any], process_group: Any, **shape: Any
) -> Callable[..., Any]:
    """Attention over all positions of a row, for ranks that have a slice of them each.

    ``attention`` is over a part of the heads; ``shape`` as DeepSpeed's `UlyssesSPAttentionHF`.
    """
    return UlyssesSPAttentionHF(
        attn=attention,
        batch_size=1,
        process_group=process_group,
        seq_length_is_variable=True,
        **shape,
    ).forward


@contextmanager
def loading(settings: Optimizer, model: Model) -> Iterator[None]:
    """Within it a rank that loads a model takes into memory only what it will hold.

    Under ZeRO-3 that is its share of each parameter; else all of them, at once on its own device.
    """
    if settings.zero_stage == 3:
        # transformers keeps a weak reference to it, and shards what it loads while it lives.
        sharding = HfDeepSpeedConfig(_config(settings, model))
        yield
        del sharding
    else:
        with device_of_rank() if torch.cuda.is_available() else nullcontext():
            yield


def uses_parameters_of(module: nn.Module, other: nn.Module) -> None:
    """Declare that a module's forward pass uses another's parameters: ZeRO-3 then gathers them."""
    for parameter in other.parameters(recurse=False):
        deepspeed.zero.register_external_parameter(module, parameter)


def _with_deepspeed(module: nn.Module, settings: Optimizer, model: Model) -> Any:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=torch.cuda.is_available() or settings.offload != "none",
    )
    config = _config(settings, model)
    bucket = min(_REDUCE_BUCKET, sum(map(size_of, trained)))
    config["zero_optimization"]["reduce_bucket_size"] = bucket
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    return engine


def _config(settings: Optimizer, model: Model) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if settings.offload != "none":
        zero["offload_optimizer"] = host
    if settings.offload == "all":
        zero["offload_param"] = host
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": torch.distributed.get_world_size(),
        "gradient_clipping": settings.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW needs no compiler
        "communication_data_type": "fp32",
        "bf16": {"enabled": model.dtype == "bfloat16"},
        "fp16": {"enabled": model.dtype == "float16"},
        "data_types": {
            # Or many micro-batches of bfloat16 would add up to less than few.
            "grad_accum_dtype": "fp32" if model.dtype == "bfloat16" else None,
            "keep_in_fp32_modules": ["*"],  # buffers: loading under ZeRO-3 rounds a rotation's
        },
        "steps_per_print": 10**9,
    }


@contextmanager
def _plainly_named(folder: Path) -> Iterator[Path]:
    """The same folder by a name without `(` or `+`, for DeepSpeed makes patterns of paths."""
    with tempfile.TemporaryDirectory() as place:
        link = Path(place, "link")
        link.symlink_to(folder.absolute())
        yield link


@contextmanager
def _for_any_ranks(checkpoint: Path) -> Iterator[Path]:
    """A checkpoint in DeepSpeed's universal form, in a folder that goes with the context.

    It lies beside the folder of checkpoints that holds this one, under a name that the next attempt
    removes if this one is killed.
    """
    place, name = checkpoint.parent, [""]
    if torch.distributed.get_rank() == 0:
        made = tempfile.mkdtemp(prefix=f"{_UNFINISHED}{place.name}-", dir=place.parent)
        Path(made).chmod(place.stat().st_mode)  # a gateway of the group may have to remove it
        name = [Path(made).name]
    torch.distributed.broadcast_object_list(name, src=0)
    folder = place.parent / name[0]
    universal, done = folder / checkpoint.name, folder / "done"
    try:
        if torch.distributed.get_rank() == 0:
            ds_to_universal.main(
                argparse.Namespace(
                    input_folder=str(checkpoint),
                    output_folder=str(universal),
                    num_extract_workers=1,
                    num_merge_workers=1,
                    keep_temp_folder=False,
                    strict=True,
                    inject_missing_state=True,
                )
            )
            done.touch()
        while not done.exists():  # for longer than a collective may take
            if not folder.exists():
                raise FileNotFoundError(
                    f"{checkpoint.resolve()} could not be laid out for other ranks"
                )
            time.sleep(_POLL_S)
        yield universal
        torch.distributed.barrier()
    finally:
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
