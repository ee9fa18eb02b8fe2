"""Published runs took as long as `weir plan` says, and docs/performance.md has the comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from protocol.placement import parse

from services.learner.planning import seconds
from services.learner.planning.footprint import rollout_footprint, trained_models
from services.learner.planning.machine import Machine
from services.learner.planning.seconds import Estimate, Span
from services.learner.planning.shapes import BUILT_IN, ModelShape
from services.learner.planning.units import GIB, format_range, format_seconds
from tests.architecture.project import ROOT
from tests.builders import a_recipe

LLAMA_8B = ModelShape(4096, 32, 32, 8, 128, 14336, 128256, 131072)
QWEN3_32B = ModelShape(5120, 64, 64, 8, 128, 25600, 151936, 40960, query_key_norm=True)
QWEN3_4B = BUILT_IN["Qwen/Qwen3-4B-Instruct-2507"]
QWEN3_06B = ModelShape(1024, 28, 16, 8, 128, 3072, 151936, 40960, tied=True, query_key_norm=True)


@dataclass(frozen=True)
class Run:
    """A run on H100s with 80 GiB; lengths are means."""

    name: str
    part: str  # of the plan, which was measured
    seconds: float
    shape: ModelShape
    gpus: str
    prompt: int
    response: int
    tables: dict[str, Any]


def grpo(staleness: int, *, recompute: bool) -> dict[str, Any]:
    """NeMo RL's GRPO: 64 prompts x 32 responses, four updates, and a penalty for divergence."""
    return {
        "model": {"dtype": "bfloat16", "max_context": 4096},
        "rollout": {"group_size": 32},
        "algorithm": {
            "advantage": "grpo",
            "divergence_weight": 0.01,
            "old_logprobs": "recompute",
            "correction": "token_tis",
        },
        "training": {
            "groups_per_step": 64,
            "updates_per_batch": 4,
            "max_staleness": staleness,
            "recompute_activations": recompute,
        },
    }


def two_micro_batches(num_gpus: int, context: int) -> dict[str, Any]:
    """prime-rl's benchmark: two samples on each GPU, as long as the context."""
    return {
        "model": {"dtype": "bfloat16", "max_context": context},
        "rollout": {"group_size": 2},
        "training": {"groups_per_step": num_gpus, "recompute_activations": True},
    }


def learner(nodes: str) -> str:
    return "learner=" + ",".join(f"{node}:0-7" for node in nodes)


def engines(nodes: str, *gpus: str) -> str:
    return " ".join(f"rollout={node}:{gpu}" for node in nodes for gpu in gpus)


def in_turns(nodes: str, *gpus: str) -> str:
    return f"{learner(nodes)} {engines(nodes, *(f'{gpu}@0.6:turns' for gpu in gpus))}"


# docs/about/performance-summary.md of NVIDIA-NeMo/RL, release 0.4: seconds of a step, and mean
# lengths of responses. A prompt's is its tokens a second, less the responses'. Its recipes
# recompute activations for the 8B, and not for the 32B.
EACH, FOURS = "01234567", ("0-3", "4-7")
NEMO = partial(Run, part="a step")
# benchmarks/baselines of PrimeIntellect-ai/prime-rl, 2026-01-15, RL with full weights: step_time.
# The published throughput also counts the time between steps, in which the weights are written.
PRIME = partial(Run, part="training", prompt=1)
RUNS = (
    *(
        NEMO(
            name,
            seconds=measured,
            shape=shape,
            gpus=gpus,
            prompt=prompt,
            response=response,
            tables=grpo(stale, recompute=shape is LLAMA_8B),
        )
        for name, shape, gpus, stale, prompt, response, measured in (
            (
                "Llama 3.1 8B, GRPO, on 16 GPUs in turns (NeMo RL)",
                *(LLAMA_8B, in_turns("ab", *EACH), 0, 131, 1060, 97.7),
            ),
            (
                "the same, one step stale, on 8 + 8 GPUs",
                *(LLAMA_8B, f"{learner('a')} {engines('b', *EACH)}", 1, 130, 1129, 74.6),
            ),
            (
                "Qwen3 32B, GRPO, on 32 GPUs in turns (NeMo RL)",
                *(QWEN3_32B, in_turns("abcd", *FOURS), 0, 110, 3206, 393),
            ),
            (
                "the same, one step stale, on 32 + 32 GPUs",
                *(QWEN3_32B, f"{learner('abcd')} {engines('efgh', *FOURS)}", 1, 112, 3207, 215),
            ),
        )
    ),
    *(
        PRIME(
            f"{name}, two micro-batches of {context:,} tokens a GPU, GPUs: {num_gpus} (prime-rl)",
            seconds=measured,
            shape=shape,
            gpus=f"learner=a:0-{num_gpus - 1} rollout=b:0",
            response=context - 1,
            tables=two_micro_batches(num_gpus, context),
        )
        for name, shape, num_gpus, context, measured in (
            ("Qwen3 4B", QWEN3_4B, 8, 16384, 4.69),
            ("Qwen3 4B", QWEN3_4B, 8, 65536, 30.3),
            ("Qwen3 0.6B", QWEN3_06B, 1, 16384, 1.99),
            ("Qwen3 0.6B", QWEN3_06B, 1, 65536, 12.2),
        )
    ),
)


def predict(run: Run) -> Span:
    """The plan of the measured part, with the run's own lengths instead of assumed ones."""
    tables = run.tables
    limit = tables["model"]["max_context"] - run.prompt
    rollout = tables["rollout"] | {"sampling": {"max_tokens": limit}}
    recipe = a_recipe(**tables | {"rollout": rollout})
    machine = Machine(parse(run.gpus), gpu_bytes=80 * GIB, engine_sequences=1024)
    ranks = (machine.placement.num_ranks, machine.ranks_of_node)
    models = trained_models(recipe, run.shape, None, *ranks)
    footprint = rollout_footprint(recipe, run.shape, machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seconds, "PROMPT_USED", 1.0)
        patch.setattr(seconds, "LENGTH_USED", run.response / limit)
        spans = Estimate(recipe, models, machine, footprint).spans({})
    return next(span for span in spans if span.what == run.part)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_published_run_took_a_time_within_the_range_of_the_plan(run: Run) -> None:
    low, high = predict(run).range
    assert low <= run.seconds <= high


def test_the_document_compares_each_published_run_with_the_plan() -> None:
    document = (ROOT / "docs/performance.md").read_text()
    section = re.split(r"^## ", document, flags=re.MULTILINE)
    (plan,) = (text for text in section if text.startswith("plan\n"))
    rows = []
    for run in RUNS:
        span = predict(run)
        ratio = run.seconds / span.seconds
        measured = format_seconds(run.seconds)
        rows.append(f"| {run.name} | {measured} | {format_range(*span.range)} | {ratio:.2f} |")
    assert [line for line in plan.splitlines() if line.startswith("| ")][1:] == rows
