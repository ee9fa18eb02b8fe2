"""All jobs, compared: what each does, how far it is, and how good."""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import Column, Limits, graph, number, rows, states
from deploy.grafana.queries import JOB, of_evaluation, of_job, of_step

_STATES = {
    "queued": "blue",
    "running": "green",
    "paused": "yellow",
    "succeeded": "dark-green",
    "failed": "red",
    "cancelled": "text",
}
_STATE = " + ".join(
    f'{value} * max by (job, recipe) (weir_job_state{{{JOB},state="{state}"}})'
    for value, state in enumerate(_STATES, start=1)
)


def _each(expression: str) -> str:
    return f"max by (job) ({expression})"


BOARD = board(
    "weir-jobs",
    "Jobs",
    "All jobs, compared: what each does, how far it is, and how good.",
    (
        "Now",
        [
            number(
                "Jobs",
                "Jobs in each state. One runs at a time; the others of this stack queue.",
                "none",
                ("weir_jobs", "{{state}}"),
                width=12,
            ),
            number(
                "Services that answer",
                "Processes of each service that Prometheus reaches.",
                "none",
                ('sum by (service) (up{job="weir"})', "{{service}}"),
                width=8,
                limits=Limits(1, 1, below=True),
                alerts=(
                    "ServiceDown",
                    "JobWithoutLearner",
                    "JobWithoutRollout",
                    "JobWithoutGrader",
                ),
            ),
            number(
                "Alerts",
                "Alerts that fire now. Each has a section in the dashboard Runbooks.",
                "none",
                ('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),
                limits=Limits(1, 1),
            ),
            rows(
                "All jobs",
                "Every unfinished job, and the newest 20 of the others.",
                ["job", "recipe", "state"],
                Column("", f"max by (job, recipe, state) (weir_job_state{{{JOB}}} == 1)", "none"),
                Column("Step", _each(of_job("weir_job_step")[0]), "none"),
                Column("of", _each(of_job("weir_job_steps")[0]), "none"),
                Column(
                    "Done",
                    _each(f"weir_job_step{{{JOB}}} / weir_job_steps{{{JOB}}}"),
                    "percentunit",
                    gauge=True,
                ),
                Column("Reward", _each(of_step("reward")[0]), "short"),
                Column("Accuracy", _each(of_step("accuracy")[0]), "percentunit"),
                Column("Held out", _each(of_evaluation("accuracy")[0]), "percentunit"),
                Column("Step takes", _each(of_job("weir_job_step_seconds_median")[0]), "s"),
                Column("Checkpoint", _each(of_job("weir_job_checkpoint_age_seconds")[0]), "s"),
                Column("Lives", _each(of_job("weir_job_attempts_total")[0]), "none"),
            ),
            states(
                "State",
                "What each job did over time.",
                (_STATE, "{{recipe}} {{job}}"),
                names=dict(enumerate(_STATES.items(), start=1)),
            ),
        ],
    ),
    (
        "Compared",
        [
            graph(
                "Steps",
                "Training steps made. A line that stays level is a job that waits, or is paused.",
                "none",
                of_job("weir_job_step"),
                stairs=True,
                alerts=("NoTrainingStep",),
            ),
            graph(
                "Reward",
                "Mean reward of the responses of the last step.",
                "short",
                of_step("reward"),
            ),
            graph(
                "Accuracy",
                "Share of the sampled responses of the last step that are correct.",
                "percentunit",
                of_step("accuracy"),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Held-out accuracy",
                "avg@k of the last evaluation: the mean over tasks of the share of correct "
                "responses.",
                "percentunit",
                of_evaluation("accuracy"),
                minimum=0,
                maximum=1,
                stairs=True,
            ),
            graph(
                "Seconds per step",
                "Median time from step to step of the newest steps.",
                "s",
                of_job("weir_job_step_seconds_median"),
                minimum=0,
            ),
            graph(
                "Age of the checkpoint",
                "What a job that ends badly would lose: the time since its newest checkpoint.",
                "s",
                of_job("weir_job_checkpoint_age_seconds"),
                minimum=0,
                alerts=("CheckpointOld",),
            ),
            graph(
                "Tokens trained on, per second",
                "Response tokens that went into training steps.",
                "short",
                (f"rate(weir_job_tokens_total{{{JOB}}}[$__rate_interval])", "{{recipe}} {{job}}"),
                minimum=0,
            ),
        ],
    ),
)
