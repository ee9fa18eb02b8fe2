"""The recipe of ``weir sft``: which model learns which solutions, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from protocol import recipe as jobs
from protocol.names import Table
from protocol.recipe import Model, Optimizer, check_sums
from protocol.recipe_files import RecipeError, explain, load_tables
from protocol.recipe_tasks import TaskFiles
from pydantic import Field, ValidationError, model_validator


class Training(Table):
    epochs: int = Field(default=1, ge=1, description="each solution is learned so many times")
    batch_size: int = Field(default=64, ge=1, description="solutions per optimizer update")
    micro_batch_tokens: int = Field(default=16384, ge=1)
    logprob_chunk_tokens: int = Field(
        default=1024, ge=1, description="so many tokens' logits exist at once"
    )
    sequence_parallel: int = Field(default=1, ge=1, description="ranks that share each solution")
    recompute_activations: bool = Field(
        default=False, description="in the backward pass: less memory, a third more time"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the order of the solutions")


class DecayingOptimizer(Optimizer):
    """AdamW with a linear warm-up, then a linear decay to 0 after the last update."""

    learning_rate: float = Field(default=1e-5, gt=0)


class SftRecipe(Table):
    model: Model
    tasks: TaskFiles
    training: Training = Training()
    optimizer: DecayingOptimizer = DecayingOptimizer()

    @model_validator(mode="after")
    def _sums_are_exact(self) -> Self:
        check_sums(self.model, self.optimizer)
        return self

    @model_validator(mode="after")
    def _merge_is_not_asked(self) -> Self:
        if self.model.lora is not None and self.model.lora.merge:
            raise ValueError(
                "model.lora.merge does nothing: the result is merged anyway; remove it"
            )
        return self

    def for_trainer(self) -> jobs.Recipe:
        """The same for the trainer of jobs, whose loss is then the mean NLL of a batch's tokens.

        That is the positive LM loss of VAPO (arXiv:2504.05118) for responses that are all correct;
        the policy's own loss is 0, as their advantages are.
        """
        shared = self.training.model_dump(exclude={"epochs", "batch_size"})
        return jobs.Recipe(
            name="sft",
            model=self.model,
            tasks=jobs.Tasks(train=self.tasks.train),
            rollout=jobs.Rollout(sampling=jobs.Sampling(max_tokens=self.model.max_context - 1)),
            algorithm=jobs.Algorithm(
                advantage="grpo", old_logprobs="recompute", positive_lm_weight=1.0
            ),
            training=jobs.Training(steps=1, **shared),
            optimizer=self.optimizer,
        )


def load_sft_recipe(path: Path) -> SftRecipe:
    """Read a recipe of ``weir sft`` from a TOML file.

    Raises:
        RecipeError: if the file is missing or unreadable, is not TOML, or is no such recipe.
    """
    try:
        return SftRecipe.model_validate(load_tables(path))
    except ValidationError as error:
        raise RecipeError(f"{path}:\n{explain(error)}") from error
