"""Who waits for whom: ``python -m benchmarks.overlap``.

First the demo's job on a real stack against its simulation (`benchmarks.simulator`), which
``--simulate`` leaves out. Then a simulated 7B model on H100s: costs from data sheets, log-normal
lengths to 20,000 tokens, a learner as fast as all rollouts when they are full.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from benchmarks.jobs import WARM_UP, Job, a_demo_recipe, a_stack, run, warm_up
from benchmarks.simulator import Costs, Outcome, check, simulate
from tests.stack.conftest import Stack

# One GPU reads 15.2 GB of weights for a token, and for each response 57 KB of keys and values of
# each of some 4,000 tokens, at 60 % of 3.35 TB/s; a version is loaded from memory in about 1 s.
H100_7B = Costs(token=7.6e-3, response=0.11e-3, at_once=256, trained_token=0.0, step=1.0, pause=1.0)
STALENESS = (0, 1, 2, 4)
GROUPS, GROUP_SIZE = 32, 16  # of a step with one rollout
STEPS, FIRST_STEPS = 24, 8  # of which so many are left out
STACK_STEPS, STACK_GROUPS, STACK_GROUP_SIZE = 30, 16, 8
STACK_SAMPLING = {"temperature": 1.3, "max_tokens": 48}
AT_ONCE = 256  # responses of an engine


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true")
    check()
    if not parser.parse_args().simulate:
        with a_stack() as stack:
            warm_up(stack)
            _show_calibration({staleness: _demo(stack, staleness) for staleness in (0, 1, 2, 4)})
    _show_foretold()


def _show_foretold() -> None:
    heads = ("rollouts", "responses a step", "staleness", "learner idle", "rollouts idle")
    heads += ("tokens a second", "of linear scaling", "learner idle, rollouts a quarter faster")
    print("\n|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    alone: dict[int, float] = {}
    for rollouts, groups in ((1, GROUPS), (8, 8 * GROUPS), (8, GROUPS)):
        for staleness in STALENESS:
            even, spare = (_foretold(rollouts, staleness, groups, s) for s in (1.0, 1.25))
            ideal = rollouts * alone.setdefault(staleness, even.tokens_per_second)
            cells = [f"{rollouts}", f"{groups * GROUP_SIZE:,}", f"{staleness}"]
            cells += [f"{even.learner_idle:.0%}", f"{even.rollouts_idle:.0%}"]
            cells += [f"{even.tokens_per_second:,.0f}", f"{even.tokens_per_second / ideal:.2f}"]
            print("|", " | ".join([*cells, f"{spare.learner_idle:.0%}"]), "|", flush=True)


def _foretold(rollouts: int, staleness: int, groups: int, spare: float) -> Outcome:
    """Of a learner that is as fast as its rollouts when they are full, over ``spare``."""
    costs = replace(H100_7B, trained_token=spare / H100_7B.fastest / rollouts)
    random = np.random.default_rng(0)
    lengths = random.lognormal(8.0, 0.9, (STEPS * groups, GROUP_SIZE)).clip(30, 20_000).astype(int)
    return simulate(
        costs,
        list(lengths),
        groups_per_step=groups,
        max_staleness=staleness,
        num_rollouts=rollouts,
        warm_up=FIRST_STEPS,
    )


def _demo(stack: Stack, staleness: int) -> Job:
    full = {"samples": STACK_GROUP_SIZE, "tasks": 128, "sampling": STACK_SAMPLING}
    recipe = a_demo_recipe(
        training={
            "steps": STACK_STEPS,
            "groups_per_step": STACK_GROUPS,
            "max_staleness": staleness,
            "checkpoint_every": 10 * STACK_STEPS,
        },
        rollout={"group_size": STACK_GROUP_SIZE},
        evaluation=None if staleness else full,
    )
    return run(stack, recipe)


def _show_calibration(jobs: dict[int, Job]) -> None:
    costs = _costs(jobs[0])
    heads = ("staleness", "seconds a step", "foretold", "learner idle", "foretold")
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    for staleness, job in jobs.items():
        seconds = job.seconds / len(job.measured)
        idle = job.phase("wait_for_groups") / job.seconds
        said = _simulated(costs, jobs[0], staleness)
        cells = [f"{staleness}", f"{seconds:.2f}", f"{said.step_seconds:.2f}"]
        print("|", " | ".join([*cells, f"{idle:.0%}", f"{said.learner_idle:.0%}"]), "|", flush=True)


def _costs(job: Job) -> Costs:
    """What makes the simulation of a job without staleness take as long as the job took."""
    tokens = job.evaluations[0]["evaluation"]["samples"] * _mean_length(job)
    evaluating = job.evaluations[0]["evaluation"]["seconds"]
    full = AT_ONCE * evaluating / tokens  # seconds of a token when the engine is full
    trained = job.phase("train") / job.total("tokens")
    other = (job.seconds - job.phase("train") - job.phase("wait_for_groups")) / len(job.measured)
    low, high = 0.0, full  # how much of it there is however few the responses are
    for _ in range(20):
        costs = _split(full, (low + high) / 2, trained, other)
        if _simulated(costs, job, 0).step_seconds * len(job.measured) > job.seconds:
            high = costs.token
        else:
            low = costs.token
    return _split(full, low, trained, other)


def _split(full: float, token: float, trained: float, other: float) -> Costs:
    return Costs(token, (full - token) / AT_ONCE, AT_ONCE, trained, other)


def _simulated(costs: Costs, job: Job, staleness: int) -> Outcome:
    random = np.random.default_rng(0)
    mean = _mean_length(job)
    shape = (STACK_STEPS * STACK_GROUPS, STACK_GROUP_SIZE)
    return simulate(
        costs,
        list(random.normal(mean, mean / 10, shape).clip(1).round().astype(int)),
        groups_per_step=STACK_GROUPS,
        max_staleness=staleness,
        num_rollouts=1,
        warm_up=WARM_UP,
    )


def _mean_length(job: Job) -> float:
    return float(np.mean([step["response_length"] for step in job.measured]))


if __name__ == "__main__":
    main()
