# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
"""A job with TRL's GRPOTrainer, for `benchmarks.end_to_end`, in an environment of its own.

``python -m benchmarks.with_trl SETTINGS RESULT`` reads and writes JSON. It samples in the
trainer's process, with vLLM or with transformers.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from services.chassis.cost import core_seconds, find_family

Json = dict[str, Any]
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


class Clock(TrainerCallback):
    """Notes time and processor time after each batch of samples."""

    def __init__(self, updates_per_batch: int) -> None:
        self.updates_per_batch = updates_per_batch
        self.batches: list[Json] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the times after the last update of a batch."""
        if state.global_step % self.updates_per_batch == 0:
            spent = sum(map(core_seconds, find_family(os.getpid())))
            self.batches.append({"time": time.time(), "core_seconds": spent})


def main(settings: Json) -> Json:
    """Train, and return the times of each batch and its mean reward."""
    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    clock = Clock(settings["updates_per_batch"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=_find_answers if settings["finds_answer"] else _rewards,
            args=_arguments(settings, folder),
            train_dataset=Dataset.from_list(_tasks(settings)),
            processing_class=AutoTokenizer.from_pretrained(settings["model"]),
            callbacks=[clock],
        )
        trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    return {"batches": clock.batches, "rewards": rewards}


def _arguments(settings: Json, folder: str) -> GRPOConfig:
    updates = settings["updates_per_batch"]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=updates,
        seed=settings["seed"],
        max_steps=settings["steps"] * updates,
        per_device_train_batch_size=settings["samples"] // updates,
        steps_per_generation=updates,
        num_generations=settings["group_size"],
        max_completion_length=settings["max_tokens"],
        temperature=settings["temperature"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings["warmup_steps"],
        adam_beta1=settings["betas"][0],
        adam_beta2=settings["betas"][1],
        weight_decay=0.0,
        max_grad_norm=settings["max_grad_norm"],
        beta=0.0,
        epsilon=settings["clip_low"],
        epsilon_high=settings["clip_high"],
        loss_type="dapo",  # the mean over the tokens of a batch
        scale_rewards="group",
        use_vllm=settings["vllm"],
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.05,  # of the machine's memory, where there is no GPU
        vllm_max_model_length=settings["max_context"],
    )


def _tasks(settings: Json) -> list[Json]:
    lines = Path(settings["tasks"]).read_text().splitlines()
    tasks = map(json.loads, lines)
    template = settings["prompt_template"]
    return [
        {"prompt": template.replace("{prompt}", task["prompt"]), "answer": task["answer"]}
        for task in tasks
    ]


def _rewards(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Return 1 for each completion with the gold answer in its last box, else 0."""
    boxes = [_BOXED.findall(completion)[-1:] for completion in completions]
    return [float(box == [gold]) for box, gold in zip(boxes, answer, strict=True)]


def _find_answers(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Return 1 for each completion that contains the gold answer, else 0."""
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
