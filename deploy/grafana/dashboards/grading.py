"""The graders' scores, the pool that computes them, and the judge."""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import Limits, graph, states
from deploy.grafana.queries import increase, part, quantile, rate
from deploy.grafana.shared import time_of

BOARD = board(
    "weir-grading",
    "Graders and judge",
    "The graders' scores, the pool that computes them, and the judge.",
    (
        "Grades",
        [
            graph(
                "Scores per second, by verdict",
                "Scores that were given, or not.",
                "short",
                rate("weir_grades_total", "verdict"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Scores per second, by verifier",
                "Each check of a recipe names a verifier.",
                "short",
                rate("weir_grades_total", "verifier"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Ungradable",
                "Share of all scores that could not be given.",
                "percentunit",
                part("weir_grades_total", 'verdict="ungradable"', "of all scores"),
                minimum=0,
                limits=Limits(0.02, 0.05),
                alerts=("UngradableScores",),
            ),
            graph(
                "Seconds per score",
                "By verifier; a judge's wait for its server is in it.",
                "s",
                (quantile(0.5, "weir_grade_seconds", "verifier"), "{{verifier}} median"),
                (quantile(0.99, "weir_grade_seconds", "verifier"), "{{verifier}} 99 %"),
                minimum=0,
            ),
            graph(
                "Groups in flight",
                "Groups that each grader works on.",
                "none",
                ('weir_deliveries_in_flight{service="grader"}', "{{instance}}"),
                minimum=0,
            ),
            time_of("grader"),
        ],
    ),
    (
        "Pool of worker processes",
        [
            graph(
                "Calls that wait",
                "For a worker. Suspect calls, which have crashed or hung once, wait apart.",
                "none",
                ("sum by (suspect) (weir_pool_backlog_calls)", "suspect: {{suspect}}"),
                minimum=0,
            ),
            graph(
                "Seconds per call",
                "Waiting for a worker, and being computed: 95 % of calls take less.",
                "s",
                (quantile(0.95, "weir_pool_wait_seconds"), "waiting"),
                (quantile(0.95, "weir_pool_call_seconds"), "computed"),
                minimum=0,
            ),
            graph(
                "Workers and failures",
                "Worker processes that live; calls that ended without a value, and workers that "
                "were replaced, by reason.",
                "none",
                ("sum(weir_pool_workers_alive)", "alive"),
                (increase("weir_pool_calls_failed_total", "cause")[0], "calls failed: {{cause}}"),
                (increase("weir_pool_workers_killed_total", "why")[0], "replaced: {{why}}"),
                minimum=0,
            ),
        ],
    ),
    (
        "Judge, where there is one",
        [
            states(
                "Judge",
                "As each grader sees it. While it is down, graders take no work that needs it.",
                (
                    "weir_judge_up and on (instance) "
                    "(sum by (instance) (weir_judge_calls_total) > 0)",
                    "{{model}} for {{instance}}",
                ),
                names={0: ("down", "red"), 1: ("up", "green")},
            ),
            graph(
                "Calls per second",
                "By how they ended; all but 'verdict' are errors.",
                "short",
                rate("weir_judge_calls_total", "outcome"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Errors",
                "Share of the calls that ended without a verdict.",
                "percentunit",
                part("weir_judge_calls_total", 'outcome!="verdict"', "of all calls"),
                minimum=0,
                limits=Limits(0.01, 0.05),
                alerts=("JudgeErrors",),
            ),
            graph(
                "Seconds per call",
                "Of one call to the judge's server.",
                "s",
                (quantile(0.5, "weir_judge_call_seconds"), "median"),
                (quantile(0.95, "weir_judge_call_seconds"), "95 %"),
                minimum=0,
            ),
            graph(
                "Tokens per second",
                "As the judge's server counts them.",
                "short",
                rate("weir_judge_tokens_total", "kind"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Questions",
                "Calls that the server works on, and questions that wait for it.",
                "none",
                ("sum(weir_judge_in_flight)", "asked"),
                ("sum(weir_judge_waiting)", "waiting"),
                minimum=0,
            ),
        ],
    ),
)
