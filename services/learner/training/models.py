"""What is trained: a policy that gives log-probabilities, and a critic that gives values."""

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
from services.learner.training.attention import PACKED, use_flash_attention
from services.learner.training.batching import MicroBatch
from services.learner.training.engine import (
    DTYPES,
    Engine,
    FrozenModel,
    loading,
    name_of_device,
    uses_parameters_of,
)
from services.learner.training.folders import (
    is_stored_otherwise,
    weights_of,
    write_folder,
    write_settings,
    write_tensors,
)
from services.learner.training.host_copies import HeldWeights, HostCopies
from services.learner.training.lora import add_adapter, merged, save_adapter, without_adapter
from services.learner.training.model_check import SAFELY, VALUE_HEAD, UnsupportedModel, head_in
from services.learner.training.sequence import ALONE, RankGroup, Slice, attention_over
from services.learner.training.shares import Shares, shape_of


class Policy(nn.Module):
    """A causal LM as the training step sees it: log-probability and entropy per own token."""

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
        """([token] log-probs, [token] entropies), both in nats, of the batch's targets."""
        part = Slice(self.group, batch)
        hidden = part.hidden(cast(nn.Module, self.model.base_model))
        logprobs, entropies = self.logprobs(hidden, batch.targets[part.is_own], temperature)
        return part.whole(logprobs), part.whole(entropies)


class _LogprobHead(nn.Module):
    """The head, without ever having all logits.

    It uses the head's weight and not the head: under ZeRO-3 each call of a module gathers its
    weights on all ranks, but the ranks have different numbers of chunks.
    """

    def __init__(
        self, head: nn.Linear, chunk_tokens: int, num_ids: int | None, compiles: bool
    ) -> None:
        super().__init__()
        self._head = (head,)  # a tuple, so that it is no submodule
        self._chunk_tokens = chunk_tokens
        self._num_ids = num_ids
        self._compiles = compiles
        uses_parameters_of(self, head)

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
    """A language model whose head gives the expected return; a new head expects 0."""

    def __init__(self, model: PreTrainedModel, group: RankGroup = ALONE) -> None:
        super().__init__()
        self.model = model
        self.group = group
        self.head = _ValueHead(model.config.hidden_size, 1, dtype=model.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: MicroBatch) -> Tensor:
        """The value of the state before each own token, [token] float32."""
        part = Slice(self.group, batch)
        return part.whole(self.head(part.hidden(self.model)).squeeze(-1))


class _ValueHead(nn.Linear):
    """Computes in float32: advantages are differences of values that lie close together."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input.float(), self.weight.float(), self.bias.float())


class BaseModel:
    """A policy as it was before it had an adapter: a reference that takes no memory."""

    def __init__(self, policy: Engine) -> None:
        self._policy = policy

    def __call__(self, *inputs: Any) -> Any:
        with self._policy.frozen(), without_adapter(self._policy.module):
            return self._policy(*inputs)


class Models:
    def __init__(
        self,
        recipe: Recipe,
        policy_folder: Path,
        critic_folder: Path,
        num_ids: int | None = None,
    ) -> None:
        """Load them, the critic and the reference only where the recipe needs them.

        Raises:
            UnsupportedModel: if the ranks have no GPU for its dtype or its attention.
        """
        if recipe.model.dtype == "float16" and not name_of_device():
            raise UnsupportedModel(
                "model.dtype = 'float16' needs a GPU; choose float32 or bfloat16 on CPUs"
            )
        use_flash_attention(recipe.training.flash_attention)
        self.recipe = recipe
        self.policy_folder, self.critic_folder = policy_folder, critic_folder
        self.num_ids = num_ids
        self.group = RankGroup.of(recipe.training.sequence_parallel)
        self.policy = Engine(self._load_policy(), recipe.optimizer, recipe.model)
        self.held = HeldWeights(self.policy.own_weights)
        self.critic: Engine | None = None
        if recipe.critic is not None:
            self.critic = Engine(self._load_critic(), recipe.critic.optimizer, recipe.model)
        self.reference = self._load_reference()
        self._shares = Shares()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        with ExitStack() as rehearsals:
            for engine in self._engines().values():
                rehearsals.enter_context(engine.rehearsing())
            yield

    def save(self, folder: Path) -> HostCopies:
        """Copy aside what `load` restores exactly, on any number of ranks; it is to be written."""
        aside = HostCopies()
        for name, engine in self._engines().items():
            engine.save(folder, name, aside)
        return aside

    def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        """Restore what `save` saved, or of it the weights alone.

        Raises:
            FileNotFoundError: if it is not there.
        """
        for name, engine in self._engines().items():
            engine.load(folder, name, with_optimizer=with_optimizer)

    def export(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder; only rank 0 writes, all ranks gather.

        Of a policy with an adapter this is the adapter alone.
        """
        model = cast(Policy, self.policy.module).model
        weights = weights_of(model)
        if self.recipe.model.lora is not None:
            weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        state = self.policy.state_of(weights)
        if state and self.recipe.model.lora is not None:
            save_adapter(model, state, folder)
        elif state:
            write_folder(model, state, self.policy_folder, folder)

    def publish(self, folder: Path, slot: int) -> None:
        """Write the policy as `export` does, but each rank a share of it, into a slot of `Shares`.

        What a version before has left in the folder is replaced.
        """
        model = cast(Policy, self.policy.module).model
        weights = weights_of(model)
        shapes = {name: shape_of(weight) for name, weight in weights.items()}
        if self.recipe.model.lora is not None or is_stored_otherwise(model, shapes):
            self.export(folder)
            return
        if torch.distributed.get_rank() == 0 and not has_config(folder):
            write_settings(model, self.policy_folder, folder)
        own = self._shares.of(slot, folder, shapes)
        for bucket in self.policy.gathered(weights):
            for name in own.keys() & bucket.keys():
                own[name].copy_(bucket[name].detach(), non_blocking=True)
            if torch.cuda.is_available():  # before what was gathered is let go
                torch.cuda.synchronize()
        torch.distributed.barrier()  # so that rank 0 knows that all is written

    def export_critic(self, folder: Path) -> None:
        """Write the critic as a folder that can be a recipe's ``critic.path``; as `export` does."""
        assert self.critic is not None, "the recipe has no critic"
        critic = cast(Critic, self.critic.module)
        head = self.critic.state_of(weights_of(critic.head))
        state = self.critic.state_of(weights_of(critic.model))
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
            compiles=training.compile_layers,
        )

    def _load_reference(self) -> FrozenModel | BaseModel | None:
        if self.recipe.algorithm.divergence_weight == 0:
            return None
        if self.recipe.model.lora is not None:
            return BaseModel(self.policy)
        return FrozenModel(self._load_policy(), self.recipe.optimizer, self.recipe.model)

    def _load_critic(self) -> Critic:
        """One that `export_critic` wrote, a reward model, or a language model with a new head."""
        assert self.recipe.critic is not None
        with loading(self.recipe.critic.optimizer, self.recipe.model):
            model = self._read(AutoModel, self.critic_folder)
        critic = Critic(model, self.group)
        critic.head.load_state_dict(head_in(self.critic_folder), strict=False)
        return critic

    def _read(self, loader: Any, folder: Path) -> PreTrainedModel:
        model = read_model(loader, folder, self.group, DTYPES[self.recipe.model.dtype])
        if self.recipe.training.recompute_activations:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.recipe.training.compile_layers:
            layers = model._no_split_modules or ()
            for module in model.modules():
                if type(module).__name__ in layers:
                    module.compile(dynamic=True)  # batches differ in length
        return model


def read_model(loader: Any, folder: Path, group: RankGroup, dtype: torch.dtype) -> PreTrainedModel:
    """Read a folder as it is trained: for samples that lie in one row, and without randomness."""
    config = AutoConfig.from_pretrained(folder, **SAFELY)
    _without_randomness(config)
    model = loader.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        attn_implementation=PACKED if group.size == 1 else attention_over(group, config),
        **SAFELY,
    )
    model.train()
    for module in model.modules():
        if isinstance(module, _DropoutNd):  # one whose share is not from the config
            module.p = 0.0
    return model


def write_merged(base: Path, adapter: Path, dtype: str, folder: Path) -> None:
    """Write the model of a folder with an adapter merged into its weights.

    On the CPU, by one rank alone; it takes the memory of one model.
    """
    model = merged(base, adapter, DTYPES[dtype])
    write_folder(model, weights_of(model), base, folder)


def _without_randomness(config: PretrainedConfig) -> None:
    """Switch it off: a policy that drops out at random is not the one that sampled."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            _without_randomness(value)
        elif ("drop" in name or "jitter" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
