"""The metrics of a job, as its events add up to them."""

from typing import Any

from services.gateway.core.watch.job_metrics import JobHistory, build_families
from tests.builders import a_job_record, a_recipe, an_event

LEDGER = {"asked": 9, "trained": 6, "under_way": 1, "dropped": {"no_signal": 2}}
Row = tuple[str, float, Any]


def build_history(*rows: Row, **record: Any) -> JobHistory:
    """Return a history of events: id, time, and a metrics event's data, or whether one begins."""
    history = JobHistory(a_job_record(**record), is_current=True)
    for event_id, created_at, content in rows:
        field = "data" if isinstance(content, dict) else "begins"
        changes: dict[str, Any] = {"created_at": created_at, field: content}
        event = an_event(event_id, **changes)
        history.add(event)
    return history


def check_metrics(history: JobHistory, expected: str, now: float = 0.0) -> None:
    """Each line is the name of a metric, its further labels, and its number, or - for none."""
    values = {
        " ".join([sample.name, *[*sample.labels.values()][2:]]): sample.value
        for family in build_families([history], now)
        for sample in family.samples
    }
    for line in expected.strip().splitlines():
        name, _, number = line.strip().rpartition(" ")
        value = values.get(f"weir_job_{name}")
        assert value == (None if number == "-" else float(number)), line


def step(number: int, created_at: float, **metrics: Any) -> Row:
    return f"step:{number}", created_at, {"kind": "step", "step": number, **metrics}


def evaluation(number: int, created_at: float, **metrics: Any) -> Row:
    numbers = {"step": number, **metrics}
    content = {"kind": "evaluation", "step": number, "evaluation": numbers}
    return f"evaluation:{number}", created_at, content


def test_the_last_step_has_its_measured_numbers_and_the_last_measured_parity() -> None:
    unmeasured = {"loss": None, "parity_max": None, "dropped_responses": {"x": 1}}
    history = build_history(
        step(1, 10, reward=0.25, loss=0.5, parity_max=0.25, parity_mean=0.125, parity_tokens=9),
        step(2, 20, reward=0.5, parity_tokens=0, **unmeasured),
    )
    check_metrics(
        history,
        """
        metric reward 0.5
        metric loss -
        metric dropped_responses -
        metric parity_max 0.25
        metric parity_mean 0.125
        metric parity_tokens 0
        step 2
        """,
    )


def test_only_steps_count_for_the_median_step_and_only_evaluations_for_the_longest() -> None:
    first = (
        ("attempt:1", 0, True),
        evaluation(0, 40, accuracy=0.5, per_task={}),
        step(1, 100, seconds=11),
        step(2, 110, seconds=9),
    )
    check_metrics(build_history(*first), "step_seconds_median -")
    history = build_history(
        *first,
        step(3, 130, seconds=20),
        evaluation(3, 180, accuracy=0.75, seconds=60),
        step(4, 300, seconds=12),
        ("undersampled:4", 301, False),
        step(5, 312, seconds=13),
    )
    check_metrics(
        history,
        """
        step_seconds_median 12
        evaluation_seconds_max 60
        evaluation accuracy 0.75
        progress_timestamp_seconds 312
        """,
    )


def test_the_best_evaluation_stays_with_all_its_numbers() -> None:
    history = build_history(
        evaluation(0, 0, accuracy=0.5),
        evaluation(1, 1, accuracy=0.75, process=0.5),
        evaluation(2, 2, accuracy=None),
        evaluation(3, 3, accuracy=0.25, process=1.0),
    )
    check_metrics(history, "evaluation process 1\nbest_evaluation process 0.5")


def test_the_start_of_an_attempt_is_progress() -> None:
    history = build_history(step(1, 10), ("any id", 5000, True), ("attempt:2", 6000, False))
    check_metrics(history, "progress_timestamp_seconds 5000")


def test_a_counter_never_falls_if_an_attempt_repeats_steps() -> None:
    history = build_history(
        step(5, 10, totals={"tokens": 100}, phase_seconds_total={"train": 50.0}),
        step(6, 20, totals={"tokens": 90}, phase_seconds_total={"train": 40.0, "publish": 1.0}),
    )
    check_metrics(
        history,
        """
        tokens_total 100
        phase_seconds_total train 50
        phase_seconds_total publish 1
        empty_steps_total 0
        """,
    )


def test_the_ledger_is_that_of_the_last_event_until_the_job_has_a_result() -> None:
    last_step = step(1, 10, groups=LEDGER)
    check_metrics(
        build_history(last_step),
        """
        groups train under_way 1
        groups train dropped 2
        groups_dropped train no_signal 2
        """,
    )
    final = LEDGER | {"under_way": 0, "dropped": {"no_signal": 2, "surplus": 1}}
    history = build_history(last_step, state="succeeded", result={"groups": final})
    check_metrics(history, "groups train under_way 0\ngroups_dropped train surplus 1")


def test_the_age_of_a_missing_checkpoint_is_that_of_the_job() -> None:
    history = build_history(started_at=100.0)
    check_metrics(history, "checkpoint_age_seconds 60", now=160.0)
    history.checkpoint = (3, 150.0)
    check_metrics(history, "checkpoint_age_seconds 10\ncheckpoint_step 3", now=160.0)


def test_a_history_that_is_not_read_to_its_end_has_no_old_numbers() -> None:
    history = build_history(step(1, 10, reward=0.5))
    history.is_current = False
    check_metrics(history, "step -\nmetric reward -\nsteps 2")


def test_invalid_ledgers_and_numbers_are_no_metrics() -> None:
    history = build_history(
        step(1, 10, reward=2**70, groups={"asked": "x", "dropped": 1}),
        step(3, 40, reward=0.5),
    )
    check_metrics(history, "metric reward 0.5\nstep 3")


def test_the_last_bill_is_exported_and_evaluations_are_foretold() -> None:
    bill = {"core_seconds": {"learner": 7.5}, "tokens": {"train/trained": 9}, "gpu_hours": 0.5}
    history = build_history(
        step(1, 10, bill={**bill, "price": None}),
        *(
            evaluation(number, number, accuracy=0.3 + 0.01 * number, samples=4096)
            for number in range(0, 50, 10)
        ),
        recipe=a_recipe(training={"steps": 60}),
    )
    check_metrics(
        history,
        """
        bill core_seconds/learner 7.5
        bill tokens/train/trained 9
        bill gpu_hours 0.5
        bill price -
        """,
    )
    forecast = history.forecast()
    assert forecast is not None
    assert (forecast.step, forecast.accuracy > 0.7) == (60, True)
    assert history.forecast() is forecast
    history.record = a_job_record(state="cancelled")
    assert history.forecast() is None
