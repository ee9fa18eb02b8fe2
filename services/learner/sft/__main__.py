"""``weir sft RECIPE DIR``: a model learns the solutions of a task file, and is written to DIR.

Several ranks: ``torchrun --nproc-per-node=N -m services.learner.sft RECIPE DIR``.

Exit status: 0 the model is there, 1 it could not be trained, 2 the input was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from protocol.messages import Fault, Task
from protocol.placement import PlacementError
from protocol.recipe_files import RecipeError
from protocol.tasks import TaskFileError, read_tasks

from services.chassis.deployment import DeploymentError, model_sources
from services.chassis.faults import Unworkable
from services.chassis.parent import die_with_parent
from services.learner.model_source import ModelNotFound, NotOnHub, find_model
from services.learner.sft.recipe import SftRecipe, load_sft_recipe

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
SUCCESS = 0
FAILED = 1
BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on the ranks that torchrun has started; return the exit status."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun may die during the slow imports
        die_with_parent()
    options = _parser().parse_args(arguments)
    try:
        return _train(load_sft_recipe(Path(options.recipe)), Path(options.dir))
    except (RecipeError, TaskFileError, DeploymentError, ModelNotFound, NotOnHub) as error:
        return _refuse(error)
    except MemoryError as error:  # of any rank; the others end with it
        return _complain(
            FAILED,
            f"out of memory: {error}; lower training.micro_batch_tokens or model.max_context, or "
            "set training.recompute_activations",
        )
    except Exception as error:
        # These imports take seconds.
        from services.learner.faults import classify_fault, describe_fault

        if classify_fault(error) is not Fault.MACHINE:
            raise
        return _complain(FAILED, describe_fault(error, str(Path(options.dir).parent)))


def _train(recipe: SftRecipe, target: Path) -> int:
    """Read the same on every rank, and refuse the same before the ranks join."""
    if os.path.lexists(target):
        return _refuse(f"{target} exists; name a new folder")
    roots, hub = model_sources(os.environ)
    folder = find_model(recipe.model.path, roots, hub=hub)
    train = _read("train", recipe)
    held_out = _read("held_out", recipe)

    from services.learner.sft.run import FolderTaken, Imitation, NothingLearned
    from services.learner.training.model_check import UnsupportedModel
    from services.learner.training.trial import try_models

    try:
        for warning in try_models(folder, None, recipe.model.max_context):
            _refuse(f"warning: {warning}")
        Imitation.prepare(recipe, folder, train, held_out).run(target)
    except (UnsupportedModel, PlacementError, FolderTaken, Unworkable) as error:
        return _refuse(error)
    except NothingLearned as error:
        return _complain(FAILED, error)
    return SUCCESS


def _read(name: Literal["train", "held_out"], recipe: SftRecipe) -> tuple[Task, ...]:
    path = getattr(recipe.tasks, name)
    try:
        return read_tasks(Path(path)) if path is not None else ()
    except TaskFileError as error:
        raise TaskFileError([f"tasks.{name}:", *error.problems]) from error


def _refuse(error: object) -> int:
    return _complain(BAD_INPUT, error) if os.environ.get("RANK", "0") == "0" else BAD_INPUT


def _complain(status: int, error: object) -> int:
    print(f"weir: {error}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir sft", description="Have a model learn the solutions of a task file."
    )
    parser.add_argument("recipe", metavar="RECIPE", help="its own kind: model, tasks, training")
    parser.add_argument("dir", metavar="DIR", help="where the model goes; a job can start from it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
