"""A model under DeepSpeed: optimizer, shards, checkpoints. Only this module imports DeepSpeed.

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
from services.learner.training.shares import buckets, num_elements

P = TypeVar("P")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_UNFINISHED = ".unfinished-"  # prefix of folders that the next attempt removes
_POLL_S = 0.2
_REDUCE_BUCKET = 500_000_000  # values: DeepSpeed's default; it is allocated whole


class Engine:
    """A trainable module: called for its forward pass, improved by `update`."""

    def __init__(self, module: nn.Module, settings: Optimizer, model: Model) -> None:
        self.module = module
        self.settings = settings
        self.num_ranks = torch.distributed.get_world_size()
        self.updates = 0
        self._rehearses = False
        self.last_update: int | None = None  # the learning rate decays linearly to 0 at this update
        if settings.offload != "none" and torch.cuda.is_available():
            use_cores()
        self._engine = _init_deepspeed(module, settings, model)
        self.device = device_of_rank()

    def __call__(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def update(self, parts: Sequence[P], compute_loss: Callable[[P], Tensor]) -> float:
        """Make an optimizer update; return the norm of the gradient before clipping.

        If the loss or the gradient is not finite on any rank, the norm is infinite and there is no
        update: parameters and the optimizer's state stay as they are, bit for bit.

        Args:
            parts: this rank's micro-batches, the same number on every rank.
            compute_loss: returns a micro-batch's share of the loss, scalar; the shares add up.
        """
        self._set_learning_rate()
        for position, part in enumerate(parts):
            self._backward(compute_loss(part), is_last=position == len(parts) - 1)
        return self._step()

    def accumulate(self, parts: Sequence[P], compute_loss: Callable[[P], Tensor]) -> None:
        """Add the gradient of micro-batches for the next `step`."""
        for part in parts:
            self._backward(compute_loss(part), is_last=False)

    def step(self, adam: AdamW, nothing: Tensor) -> float:
        """Make an update with the accumulated gradient and other settings.

        Args:
            adam: of this step; without ``max_grad_norm`` the gradient is not clipped.
            nothing: a loss without a gradient whose graph has every parameter.
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
        self._engine.backward(_poison_if_not_finite(loss) * self.num_ranks)

    def _step(self) -> float:
        norm = self._step_if_finite()
        self.updates += math.isfinite(norm)
        return norm

    def _step_if_finite(self) -> float:
        """Step unless the norm of the gradient is not finite; DeepSpeed's optimizers check it.

        Without ZeRO and in float32 DeepSpeed uses torch's optimizer, which does not check. There
        the gradient is already reduced, so all ranks see the same norm.
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
            # DeepSpeed clears them in all other cases; the next update would use them.
            self._engine.optimizer.averaged_gradients.clear()
        return norm

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Make updates take the time and memory of real ones, without a finite gradient.

        Memory is reserved for AdamW's moments, two float32 per parameter, which its first step
        allocates.
        """
        elements = sum(num_elements(p) for p in self.module.parameters() if p.requires_grad)
        share = self.num_ranks if self.settings.zero_stage > 0 else 1
        place = self.device if self.settings.offload == "none" else "cpu"
        # Written, since the host counts only written memory.
        moments = torch.ones(2 * elements // share, dtype=torch.float32, device=place)
        self._rehearses = True
        level = logger.level
        logger.setLevel(logging.ERROR)  # DeepSpeed would log each skipped step
        yield
        logger.setLevel(level)
        self._rehearses = False
        del moments

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Run forward passes without gradients and dropout."""
        self._engine.eval()
        with torch.no_grad():
            yield
        self._engine.train()

    def save(self, folder: Path, tag: str, aside: HostCopies) -> None:
        """Copy parameters and optimizer state to the host, to be written into a folder later.

        `load` restores them exactly, on any ranks.
        """
        files = self._engine.checkpoint_engine
        save, files.save = files.save, aside.capture(files.save)
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
        """Return this rank's part of each trained weight, as stored between steps."""
        if self.settings.zero_stage == 3:
            self._engine.empty_partition_cache()  # small weights stay gathered
        trained = (p for p in self.module.parameters() if p.requires_grad)
        return [getattr(p, "ds_tensor", p.data) for p in trained]

    def load(self, folder: Path, tag: str, *, with_optimizer: bool = True) -> None:
        """Restore a state that `save` wrote, also on another number of ranks.

        Raises:
            FileNotFoundError: if there is nothing under this tag.
        """
        shards = len(list((folder / tag).glob("*_optim_states.pt")))  # none without ZeRO
        with _plain_path(folder.parent) as place:
            checkpoint = place / folder.name / tag
            if shards in (0, self.num_ranks):
                self._load(checkpoint)
            else:
                with _universal_checkpoint(checkpoint) as universal:
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
        """Reset the optimizer; under ZeRO-3 DeepSpeed cannot load weights without it."""
        optimizer = self._engine.optimizer
        for state in getattr(optimizer, "optimizer", optimizer).state.values():
            for moment in state.values():
                moment.zero_()

    def gathered(self, weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield weights of the module in buckets, each whole on every rank.

        Under ZeRO-3 a bucket is freed with the next one. Every rank must read all of them.
        """
        sharded = self.settings.zero_stage == 3
        for bucket in buckets(weights):
            gathering = deepspeed.zero.GatheredParameters([*bucket.values()], enabled=sharded)
            with gathering if sharded else nullcontext():
                yield bucket

    def gather_state(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights of the module on the CPU of rank 0, and nothing on other ranks."""
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
            remaining = (self.last_update - self.updates) / max(1, self.last_update - warmup)
            factor = min(factor, remaining)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * factor


class FrozenModel:
    """A module without training, sharded over the ranks if the trained one is."""

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


def _poison_if_not_finite(loss: Tensor) -> Tensor:
    """Return the loss, with NaN as the gradient of every parameter if it is not finite.

    Otherwise the gradient would be finite if a formula clips it.
    """
    return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan).to(loss.dtype)


def init_ranks() -> None:
    """Join the process group that torchrun describes, or be a group of one."""
    # DeepSpeed would compile a shared-memory collective for a minute; gloo has one.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
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
    """Leave the process group; otherwise a thread of torch may abort the exiting process."""
    torch.distributed.destroy_process_group()


def device_of_rank() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def name_of_device() -> str:
    """Return the driver's name of this rank's GPU; empty without one."""
    return torch.cuda.get_device_name(device_of_rank()) if torch.cuda.is_available() else ""


def use_cores() -> None:
    """Use this rank's share of the cores for AdamW on the host; deployments set one thread."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def ulysses_attention(
    attention: Callable[..., Any], process_group: Any, **shape: Any
) -> Callable[..., Any]:
    """Return attention over all positions of a row, for ranks that have a slice of them each.

    ``attention`` computes a part of the heads; ``shape`` as in DeepSpeed's `UlyssesSPAttentionHF`.
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
    """Load a model directly to where its parameters stay.

    Under ZeRO-3 a rank loads its shard of each parameter, else all of them onto its device.
    """
    if settings.zero_stage == 3:
        # transformers keeps a weak reference to it, and shards models while it exists.
        sharding = HfDeepSpeedConfig(_config(settings, model))
        yield
        del sharding
    else:
        with device_of_rank() if torch.cuda.is_available() else nullcontext():
            yield


def declare_parameters(module: nn.Module, other: nn.Module) -> None:
    """Declare that a module's forward pass uses another's parameters: ZeRO-3 then gathers them."""
    for parameter in other.parameters(recurse=False):
        deepspeed.zero.register_external_parameter(module, parameter)


def _init_deepspeed(module: nn.Module, settings: Optimizer, model: Model) -> Any:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    config = _config(settings, model)
    bucket = min(_REDUCE_BUCKET, sum(map(num_elements, trained)))
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
            # In bfloat16 the sum of many micro-batches would be too small.
            "grad_accum_dtype": "fp32" if model.dtype == "bfloat16" else None,
            "keep_in_fp32_modules": ["*"],  # buffers: ZeRO-3 would round those of RoPE
        },
        "steps_per_print": 10**9,
    }


@contextmanager
def _plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path to the folder without `(` or `+`: DeepSpeed uses paths as patterns."""
    with tempfile.TemporaryDirectory() as temporary:
        link = Path(temporary, "link")
        link.symlink_to(folder.absolute())
        yield link


@contextmanager
def _universal_checkpoint(checkpoint: Path) -> Iterator[Path]:
    """Yield a checkpoint in DeepSpeed's universal form, for any number of ranks.

    It is in a temporary folder next to that of the checkpoints. The next attempt removes it if this
    one is killed.
    """
    parent = checkpoint.parent
    name = [""]
    if torch.distributed.get_rank() == 0:
        temporary = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{parent.name}-", dir=parent.parent))
        # The gateway, of the same group, may remove it.
        temporary.chmod(parent.stat().st_mode)
        name = [temporary.name]
    torch.distributed.broadcast_object_list(name, src=0)
    folder = parent.parent / name[0]
    universal = folder / checkpoint.name
    done = folder / "done"
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
        while not done.exists():  # may take longer than the timeout of a collective
            if not folder.exists():
                raise FileNotFoundError(
                    f"{checkpoint.resolve()} cannot be converted for another number of ranks"
                )
            time.sleep(_POLL_S)
        yield universal
        torch.distributed.barrier()
    finally:
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
