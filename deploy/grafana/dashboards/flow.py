"""Who waits for whom: the work in each stream, how old it is, and where time goes."""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import Limits, graph, states
from deploy.grafana.queries import JOB, NAME, increase, of_job, of_step, rate
from deploy.grafana.shared import staleness, time_of

_SERVICE = 'service=~"$service"'

BOARD = board(
    "weir-flow",
    "Flow",
    "Who waits for whom: the work in each stream, how old it is, and where time goes.",
    (
        "Groups on their way: requests → rollouts → graded",
        [
            graph(
                "Groups per second",
                "What leaves each part: equal lines are a balanced flow.",
                "short",
                (rate("weir_sampled_groups_total")[0], "sampled"),
                (rate("weir_deliveries_handed_off_total", "", 'service="grader"')[0], "graded"),
                (rate("weir_groups_taken_in_total")[0], "taken in by the learner"),
                minimum=0,
            ),
            graph(
                "Waiting",
                "Entries of the active job that nobody works on yet. The part behind the stream "
                "that grows is the slow one.",
                "none",
                ('weir_backlog_entries{part="waiting"}', "{{stream}}"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Being worked on",
                "Entries of the active job that a worker has claimed.",
                "none",
                ('weir_backlog_entries{part="claimed"}', "{{stream}}"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Oldest entry",
                "Age of the oldest entry in each stream. One that grows without end is stuck.",
                "s",
                ("weir_backlog_oldest_seconds", "{{stream}}"),
                minimum=0,
                alerts=("OldestEntry",),
            ),
            graph(
                "Ledger",
                "Training groups: asked = trained + dropped + under way.",
                "none",
                of_job("weir_job_groups", 'purpose="train"', "{{state}}"),
                minimum=0,
            ),
            graph(
                "Dropped, by reason",
                "Training groups that no step used, so far. 'surplus' and 'no_signal' are the "
                "selection's; the others are losses.",
                "none",
                of_job("weir_job_groups_dropped", 'purpose="train"', "{{reason}}"),
                minimum=0,
                stairs=True,
            ),
        ],
    ),
    (
        "Who waits for whom",
        [
            time_of("rollout"),
            time_of("grader"),
            time_of("learner"),
            states(
                "Stalls",
                "Does a job move? If not, the edge that blocks; `weir why JOB` has the sentence.",
                (f"max by (job, recipe) (weir_job_stalled{{{JOB}}})", NAME),
                (f"weir_job_stalled{{{JOB}}} == 1", "{{edge}}"),
                names={0: ("moves", "green"), 1: ("blocks", "red")},
                alerts=("JobStalled",),
            ),
            graph(
                "Exposed grading",
                "Share of a step in which the learner waited for a group that was being graded.",
                "percentunit",
                (
                    f"{of_step('exposed_grading_seconds')[0]} / ignoring (name) "
                    f"{of_step('seconds')[0]}",
                    NAME,
                ),
                minimum=0,
            ),
            staleness(),
            graph(
                "Waiting for memory",
                "Share of the time in which a process could add no work because Redis was full.",
                "percentunit",
                rate("weir_backpressure_seconds", "service", _SERVICE),
                minimum=0,
                limits=Limits(0.05, 0.1),
                alerts=("MemoryFull",),
            ),
        ],
    ),
    (
        "Losses",
        [
            graph(
                "Attempts that failed",
                "Attempts to work on an entry that ended in an error; each is tried again.",
                "none",
                increase("weir_deliveries_failed_total", "service", _SERVICE),
                minimum=0,
            ),
            graph(
                "Given up",
                "Groups that were handed on as failed, by reason.",
                "none",
                increase("weir_deliveries_given_up_total", "why", _SERVICE),
                minimum=0,
                alerts=("GroupsGivenUp",),
            ),
            graph(
                "Taken over",
                "Entries that another worker took over or finished, and workers found dead.",
                "none",
                (increase("weir_deliveries_reclaimed_total")[0], "released"),
                (increase("weir_deliveries_lost_total")[0], "lost to another"),
                (increase("weir_worker_deaths_total")[0], "deaths"),
                (increase("weir_groups_repeated_total")[0], "repeated"),
                minimum=0,
            ),
        ],
    ),
    variables=("job", "service"),
)
