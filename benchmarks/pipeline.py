"""The pipeline against its slower stage: ``python -m benchmarks.pipeline``.

The demo's job on a real stack. Sampling alone is the evaluation before the first step, training
alone is a step without its waiting. Rates are response tokens a second.
"""

from __future__ import annotations

from benchmarks.jobs import Job, a_demo_recipe, a_stack, run, warm_up
from tests.stack.conftest import Stack

STEPS = 60
EVALUATION_SAMPLES = 8
STALENESS = (1, 2, 4)


def main() -> None:
    """Print the table."""
    print(
        "| max_staleness | sampling alone (tokens a second) | training alone | the pipeline", end=""
    )
    print(" | pipeline / slower stage |\n|---|---|---|---|---|")
    with a_stack() as stack:
        warm_up(stack)
        for staleness in STALENESS:
            job = _job(stack, staleness)
            sampling = _sampling_rate(job)
            together = job.total("tokens") / job.seconds
            training = job.total("tokens") / (job.seconds - job.phase("wait_for_groups"))
            rates = f"{sampling:,.0f} | {training:,.0f} | {together:,.0f}"
            print(
                f"| {staleness} | {rates} | {together / min(sampling, training):.2f} |", flush=True
            )


def _job(stack: Stack, staleness: int) -> Job:
    sampling = a_demo_recipe().rollout.sampling.model_dump(exclude_none=True)
    training = {"steps": STEPS, "checkpoint_every": 10 * STEPS, "max_staleness": staleness}
    evaluation = {"samples": EVALUATION_SAMPLES, "tasks": 256, "sampling": sampling}
    return run(stack, a_demo_recipe(training=training, evaluation=evaluation))


def _sampling_rate(job: Job) -> float:
    """Return the evaluation's tokens a second, with the response length of the first steps."""
    lengths = [step["response_length"] for step in job.steps[:10]]
    responses = job.evaluations[0]["evaluation"]["samples"]
    seconds = job.evaluations[0]["evaluation"]["seconds"]
    return responses * sum(lengths) / len(lengths) / seconds


if __name__ == "__main__":
    main()
