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
H100_7B = Costs(token=7.6e-3, response=0.11e-3, places=256, trained_token=0.0, step=1.0, pause=1.0)
STALENESS = (0, 1, 2, 4)
# Rollouts, groups of a step, and staleness.
SIMULATED = ((1, 32, 0), (1, 32, 2), (8, 256, 0), (8, 256, 2), (8, 32, 0), (8, 32, 2), (8, 32, 4))
GROUPS = 32  # of a step with one rollout
GROUP_SIZE = 16
STEPS = 24
WARM_UP_STEPS = 8
STACK_STEPS = 30
STACK_GROUPS = 16
STACK_GROUP_SIZE = 8
STACK_SAMPLING = {"temperature": 1.3, "max_tokens": 48}
PLACES = 256  # responses that an engine samples at once


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true")
    check()
    if not parser.parse_args().simulate:
        with a_stack() as stack:
            warm_up(stack)
            _show_calibration({staleness: _demo(stack, staleness) for staleness in STALENESS})
    _show_simulation()


def _show_simulation() -> None:
    print(
        "\n| rollouts | responses a step | staleness | learner idle | rollouts idle"
        " | tokens a second | of linear scaling |\n" + "|---" * 7 + "|"
    )
    one_rollout = {staleness: _simulate_h100(1, staleness, GROUPS) for staleness in STALENESS}
    for rollouts, groups, staleness in SIMULATED:
        outcome = _simulate_h100(rollouts, staleness, groups)
        rate = outcome.tokens_per_second
        share = rate / rollouts / one_rollout[staleness].tokens_per_second
        print(
            f"| {rollouts} | {groups * GROUP_SIZE:,} | {staleness} | {outcome.learner_idle:.0%}"
            f" | {outcome.rollouts_idle:.0%} | {rate:,.0f} | {share:.2f} |"
        )


def _simulate_h100(rollouts: int, staleness: int, groups: int) -> Outcome:
    """Simulate a learner that is as fast as its rollouts with full engines."""
    costs = replace(H100_7B, trained_token=1 / H100_7B.max_rate / rollouts)
    random = np.random.default_rng(0)
    lengths = random.lognormal(8.0, 0.9, (STEPS * groups, GROUP_SIZE)).clip(30, 20_000).astype(int)
    return simulate(
        costs,
        list(lengths),
        groups_per_step=groups,
        max_staleness=staleness,
        num_rollouts=rollouts,
        warm_up=WARM_UP_STEPS,
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
    print("| staleness | seconds a step | simulated | learner idle | simulated |")
    print("|---|---|---|---|---|")
    for staleness, job in jobs.items():
        seconds = job.seconds / len(job.measured)
        idle = job.phase("wait_for_groups") / job.seconds
        outcome = _simulate_demo(costs, jobs[0], staleness)
        print(
            f"| {staleness} | {seconds:.2f} | {outcome.step_seconds:.2f} | {idle:.0%}"
            f" | {outcome.learner_idle:.0%} |",
            flush=True,
        )


def _costs(job: Job) -> Costs:
    """Return the costs with which a simulation without staleness takes as long as the job."""
    tokens = job.evaluations[0]["evaluation"]["samples"] * _mean_length(job)
    evaluation_s = job.evaluations[0]["evaluation"]["seconds"]
    full_period = PLACES * evaluation_s / tokens
    trained = job.phase("train") / job.total("tokens")
    other = (job.seconds - job.phase("train") - job.phase("wait_for_groups")) / len(job.measured)
    # Bisection: the part of a full engine's period that does not depend on its responses.
    low = 0.0
    high = full_period
    for _ in range(20):
        middle = (low + high) / 2
        costs = _divide(full_period, middle, trained, other)
        if _simulate_demo(costs, job, 0).step_seconds * len(job.measured) > job.seconds:
            high = middle
        else:
            low = middle
    return _divide(full_period, low, trained, other)


def _divide(full_period: float, token: float, trained: float, other: float) -> Costs:
    return Costs(token, (full_period - token) / PLACES, PLACES, trained, other)


def _simulate_demo(costs: Costs, job: Job, staleness: int) -> Outcome:
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
