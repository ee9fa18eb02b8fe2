"""The trained models: a policy that gives log-probs, and a critic that gives values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from protocol.model_folder import has_config
from protocol.recipe import Recipe
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from services.learner.algorithms.logprobs import chunked_token_logprobs
from services.learner.training.attention import PACKED, mixes_in_attention, use_flash_attention
from services.learner.training.batching import MicroBatch
from services.learner.training.engine import (
    DTYPES,
    Engine,
    FrozenModel,
    declare_parameters,
    loading,
    name_of_device,
)
from services.learner.training.folders import (
    has_converted_tensors,
    module_weights,
    write_folder,
    write_settings,
    write_tensors,
)
from services.learner.training.host_copies import HostCopies, WeightSnapshot
from services.learner.training.lora import (
    add_adapter,
    disabled_adapter,
    merge_adapter,
    save_adapter,
)
from services.learner.training.model_check import (
    SAFELY,
    VALUE_HEAD,
    UnsupportedModel,
    read_value_head,
)
from services.learner.training.sequence import ALONE, RankGroup, Slice, register_attention
from services.learner.training.shares import Shares, tensor_shape


class Policy(nn.Module):
    """A causal LM that returns log-prob and entropy of each own token."""

    def __init__(
        self,
        model: PreTrainedModel,
        chunk_tokens: int,
        group: RankGroup = ALONE,
        *,
        num_ids: int | None = None,
        compiles: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.group = group
        head = cast(nn.Linear, model.get_output_embeddings())
        self.logprobs = _LogprobHead(head, chunk_tokens, num_ids, compiles)

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of the batch's targets, both [token], in nats."""
        part = Slice(self.group, batch)
        hidden = part.hidden(cast(nn.Module, self.model.base_model))
        logprobs, entropies = self.logprobs(hidden, batch.targets[part.own], temperature)
        return part.whole(logprobs), part.whole(entropies)


class _LogprobHead(nn.Module):
    """The head of a language model, which never has all logits at once.

    It uses the head's weight and does not call the head: under ZeRO-3 each call of a module gathers
    its weights on all ranks, but the ranks have different numbers of chunks.
    """

    def __init__(
        self, head: nn.Linear, chunk_tokens: int, num_ids: int | None, compiles: bool
    ) -> None:
        super().__init__()
        self._head = (head,)  # a tuple, so that torch does not register a submodule
        self._chunk_tokens = chunk_tokens
        self._num_ids = num_ids
        self._compiles = compiles
        declare_parameters(self, head)

    def forward(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        (head,) = self._head
        return chunked_token_logprobs(
            hidden,
            head.weight,
            head.bias,
            targets,
            temperature,
            self._chunk_tokens,
            num_ids=self._num_ids,
            compiles=self._compiles,
        )


class Critic(nn.Module):
    """A language model with a head for the expected return; a new head returns 0."""

    def __init__(self, model: PreTrainedModel, group: RankGroup = ALONE) -> None:
        super().__init__()
        self.model = model
        self.group = group
        self.head = _ValueHead(model.config.hidden_size, 1, dtype=model.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: MicroBatch) -> Tensor:
        """Return the value of the state before each own token, [token] float32."""
        part = Slice(self.group, batch)
        return part.whole(self.head(part.hidden(self.model)).squeeze(-1))


class _ValueHead(nn.Linear):
    """Computes in float32: advantages are small differences of values."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input.float(), self.weight.float(), self.bias.float())


class BaseModel:
    """The policy without its adapter: a reference model that takes no memory."""

    def __init__(self, policy: Engine) -> None:
        self._policy = policy

    def __call__(self, *inputs: Any) -> Any:
        with self._policy.frozen(), disabled_adapter(self._policy.module):
            return self._policy(*inputs)


class Models:
    def __init__(
        self,
        recipe: Recipe,
        policy_folder: Path,
        critic_folder: Path,
        num_ids: int | None = None,
    ) -> None:
        """Load the policy, and the critic and the reference if the recipe needs them.

        Raises:
            UnsupportedModel: if its dtype or attention needs a GPU that the ranks lack.
        """
        if recipe.model.dtype == "float16" and not name_of_device():
            raise UnsupportedModel(
                "model.dtype = 'float16' needs a GPU; choose float32 or bfloat16 on CPUs"
            )
        use_flash_attention(recipe.training.flash_attention)
        self.recipe = recipe
        self.policy_folder = policy_folder
        self.critic_folder = critic_folder
        self.num_ids = num_ids
        self.group = RankGroup.create(recipe.training.sequence_parallel)
        self.policy = Engine(self._load_policy(), recipe.optimizer, recipe.model)
        self.snapshot = WeightSnapshot(self.policy.own_weights)
        self.critic: Engine | None = None
        if recipe.critic is not None:
            self.critic = Engine(self._load_critic(), recipe.critic.optimizer, recipe.model)
        self.reference = self._load_reference()
        self._shares = Shares()
        self.shares_prompts = all(
            mixes_in_attention(cast(Policy | Critic, engine.module).model.config)
            for engine in self._engines().values()
        )

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        with ExitStack() as rehearsals:
            for engine in self._engines().values():
                rehearsals.enter_context(engine.rehearsing())
            yield

    def save(self, folder: Path) -> HostCopies:
        """Copy the state to the host, to be written for `load`, on any number of ranks."""
        copies = HostCopies()
        for name, engine in self._engines().items():
            engine.save(folder, name, copies)
        return copies

    def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        """Restore a state that `save` wrote, with or without the optimizer.

        Raises:
            FileNotFoundError: if there is none.
        """
        for name, engine in self._engines().items():
            engine.load(folder, name, with_optimizer=with_optimizer)

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder, or only its adapter if it has one.

        All ranks gather and rank 0 writes.
        """
        model = cast(Policy, self.policy.module).model
        weights = module_weights(model)
        if self.recipe.model.lora is not None:
            weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        state = self.policy.gather_state(weights)
        if state and self.recipe.model.lora is not None:
            save_adapter(model, state, folder)
        elif state:
            write_folder(model, state, self.policy_folder, folder)

    def publish(self, folder: Path, slot: int) -> None:
        """Write the policy like `export`, but each rank a share of it, into a slot of `Shares`.

        It replaces an earlier version in the folder.
        """
        model = cast(Policy, self.policy.module).model
        weights = module_weights(model)
        shapes = {name: tensor_shape(weight) for name, weight in weights.items()}
        if self.recipe.model.lora is not None or has_converted_tensors(model, shapes):
            self.export(folder)
            return
        if torch.distributed.get_rank() == 0 and not has_config(folder):
            write_settings(model, self.policy_folder, folder)
        share = self._shares.map_slot(slot, folder, shapes)
        for bucket in self.policy.gathered(weights):
            for name in share.keys() & bucket.keys():
                share[name].copy_(bucket[name].detach(), non_blocking=True)
            if torch.cuda.is_available():  # before the gathered weights are freed
                torch.cuda.synchronize()
        torch.distributed.barrier()  # when rank 0 returns, all ranks have written

    def export_critic(self, folder: Path) -> None:
        """Write the critic like `export`, as a folder for a recipe's ``critic.path``."""
        assert self.critic is not None, "the recipe has no critic"
        critic = cast(Critic, self.critic.module)
        head = self.critic.gather_state(module_weights(critic.head))
        state = self.critic.gather_state(module_weights(critic.model))
        if state:
            write_folder(critic.model, state, self.critic_folder, folder)
            write_tensors(head, folder / VALUE_HEAD)

    def _engines(self) -> dict[str, Engine]:
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic else {})

    def _load_policy(self) -> Policy:
        with loading(self.recipe.optimizer, self.recipe.model):
            model = self._read(AutoModelForCausalLM, self.policy_folder)
        if (lora := self.recipe.model.lora) is not None:
            add_adapter(model, lora, self.recipe.model.path, self.recipe.training.seed)
        training = self.recipe.training
        return Policy(
            model,
            training.logprob_chunk_tokens,
            self.group,
            num_ids=self.num_ids,
            compiles=training.compile_layers or bool(name_of_device()),
        )

    def _load_reference(self) -> FrozenModel | BaseModel | None:
        if self.recipe.algorithm.divergence_weight == 0:
            return None
        if self.recipe.model.lora is not None:
            return BaseModel(self.policy)
        return FrozenModel(self._load_policy(), self.recipe.optimizer, self.recipe.model)

    def _load_critic(self) -> Critic:
        """Load an exported critic, a reward model, or a language model with a new head."""
        assert self.recipe.critic is not None
        with loading(self.recipe.critic.optimizer, self.recipe.model):
            model = self._read(AutoModel, self.critic_folder)
        critic = Critic(model, self.group)
        critic.head.load_state_dict(read_value_head(self.critic_folder), strict=False)
        return critic

    def _read(self, loader: Any, folder: Path) -> PreTrainedModel:
        model = read_model(loader, folder, self.group, DTYPES[self.recipe.model.dtype])
        if self.recipe.training.recompute_activations is True:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.recipe.training.compile_layers:
            layers = model._no_split_modules or ()
            for module in model.modules():
                if type(module).__name__ in layers:
                    module.compile(dynamic=True)  # batches differ in length
        return model


def read_model(loader: Any, folder: Path, group: RankGroup, dtype: torch.dtype) -> PreTrainedModel:
    """Read a folder for training: with attention over packed rows, without randomness."""
    config = AutoConfig.from_pretrained(folder, **SAFELY)
    _disable_randomness(config)
    model = loader.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        attn_implementation=PACKED if group.size == 1 else register_attention(group, config),
        **SAFELY,
    )
    model.train()
    for module in model.modules():
        if isinstance(module, _DropoutNd):  # its rate may not come from the config
            module.p = 0.0
    return model


def write_merged(base: Path, adapter: Path, dtype: str, folder: Path) -> None:
    """Write the model of a folder with an adapter merged into its weights.

    It runs on the CPU in one rank, with the memory of one model.
    """
    model = merge_adapter(base, adapter, DTYPES[dtype])
    write_folder(model, module_weights(model), base, folder)


def _disable_randomness(config: PretrainedConfig) -> None:
    """Disable dropout and jitter: the engine samples without them."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            _disable_randomness(value)
        elif ("drop" in name or "jitter" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
