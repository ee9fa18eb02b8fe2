"""What a job's events add up to, as its metrics tell it."""

from typing import Any

from protocol.messages import JobState

from services.gateway.core.watch.job_metrics import JobHistory, build_families
from tests.builders import a_job_record, an_event

LEDGER = {"asked": 9, "trained": 6, "under_way": 1, "dropped": {"no_signal": 2}}


def a_history(*events: tuple[str, float, Any], **record: Any) -> JobHistory:
    """The history of events: id, time, and the data of a metrics event, or whether one begins."""
    history = JobHistory(a_job_record(**record), is_current=True)
    for event_id, created_at, data in events:
        more = {"data": data} if isinstance(data, dict) else {"begins": data}
        history.add(an_event(event_id, created_at=created_at, **more))
    return history


def told(history: JobHistory, name: str, *labels: str, now: float = 0.0) -> float | None:
    found = [
        sample.value
        for family in build_families([history], now)
        for sample in family.samples
        if (sample.name, tuple(sample.labels.values())[2:]) == (name, labels)
    ]
    assert len(found) <= 1
    return found[0] if found else None


def step(number: int, **data: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, **data}


def evaluation(step: int, **numbers: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "evaluation": {"step": step, **numbers}}


def test_the_last_step_is_told_number_by_number_without_what_was_not_measured() -> None:
    history = a_history(
        ("step:1", 10, step(1, reward=0.25, loss=0.5)),
        ("step:2", 20, step(2, reward=0.5, loss=None, dropped_responses={"x": 1})),
    )
    assert told(history, "weir_job_metric", "reward") == 0.5
    for name in ("loss", "dropped_responses"):
        assert told(history, "weir_job_metric", name) is None
    assert told(history, "weir_job_step") == 2


def test_the_parity_that_was_measured_last_stays() -> None:
    history = a_history(
        ("step:1", 10, step(1, parity_max=0.25, parity_mean=0.125, parity_tokens=9)),
        ("step:2", 20, step(2, parity_max=None, parity_tokens=0)),
    )
    assert told(history, "weir_job_metric", "parity_max") == 0.25
    assert told(history, "weir_job_metric", "parity_mean") == 0.125
    assert told(history, "weir_job_metric", "parity_tokens") == 0


def test_the_median_step_leaves_out_what_is_no_step_and_the_longest_evaluation_is_told() -> None:
    history = a_history(
        ("attempt:1", 0, True),
        ("evaluation:0", 40, evaluation(0, accuracy=0.5, per_task={})),
        ("step:1", 100, step(1, seconds=11)),
        ("step:2", 110, step(2, seconds=9)),
        ("step:3", 130, step(3, seconds=20)),
        ("evaluation:3", 180, evaluation(3, accuracy=0.75, seconds=60)),
        ("step:4", 300, step(4, seconds=12)),
        ("undersampled:4", 301, False),
        ("step:5", 312, step(5, seconds=13)),
    )
    assert told(history, "weir_job_step_seconds_median") == 12
    two = a_history(("step:1", 100, step(1, seconds=11)), ("step:2", 110, step(2, seconds=9)))
    assert told(two, "weir_job_step_seconds_median") is None
    assert told(history, "weir_job_evaluation_seconds_max") == 60
    assert told(history, "weir_job_evaluation", "accuracy") == 0.75
    assert told(history, "weir_job_progress_timestamp_seconds") == 312


def test_the_best_evaluation_stays_with_all_its_numbers() -> None:
    results = [{"accuracy": 0.5}, {"accuracy": 0.75, "process": 0.5}, {"accuracy": None}]
    results.append({"accuracy": 0.25, "process": 1.0})
    history = a_history(
        *((f"evaluation:{n}", n, evaluation(n, **r)) for n, r in enumerate(results))
    )
    assert told(history, "weir_job_evaluation", "process") == 1
    assert told(history, "weir_job_best_evaluation", "process") == 0.5


def test_a_job_is_under_way_again_when_an_attempt_begins() -> None:
    history = a_history(("step:1", 10, step(1)), ("any id", 5000, True), ("attempt:2", 6000, False))
    assert told(history, "weir_job_progress_timestamp_seconds") == 5000


def test_a_counter_never_falls_where_an_attempt_makes_steps_anew() -> None:
    totals = {"totals": {"tokens": 100}, "phase_seconds_total": {"train": 50.0}}
    less = {"totals": {"tokens": 90}, "phase_seconds_total": {"train": 40.0, "publish": 1.0}}
    history = a_history(("step:5", 10, step(5, **totals)), ("step:6", 20, step(6, **less)))
    assert told(history, "weir_job_tokens_total") == 100
    assert told(history, "weir_job_phase_seconds_total", "train") == 50
    assert told(history, "weir_job_phase_seconds_total", "publish") == 1
    assert told(history, "weir_job_empty_steps_total") == 0  # born at zero


def test_the_ledger_is_that_of_the_last_event_until_the_job_has_a_result() -> None:
    events = [("step:1", 10.0, step(1, groups=LEDGER))]
    history = a_history(*events)
    assert told(history, "weir_job_groups", "train", "under_way") == 1
    assert told(history, "weir_job_groups", "train", "dropped") == 2
    assert told(history, "weir_job_groups_dropped", "train", "no_signal") == 2
    final = {"groups": LEDGER | {"under_way": 0, "dropped": {"no_signal": 2, "surplus": 1}}}
    history = a_history(*events, state=JobState.SUCCEEDED, result=final)
    assert told(history, "weir_job_groups", "train", "under_way") == 0
    assert told(history, "weir_job_groups_dropped", "train", "surplus") == 1


def test_without_a_checkpoint_its_age_is_that_of_the_job() -> None:
    history = a_history(started_at=100.0)
    assert told(history, "weir_job_checkpoint_age_seconds", now=160.0) == 60
    history.checkpoint = (3, 150.0)
    assert told(history, "weir_job_checkpoint_age_seconds", now=160.0) == 10
    assert told(history, "weir_job_checkpoint_step") == 3


def test_a_history_that_is_not_read_to_its_end_tells_nothing_of_old() -> None:
    history = a_history(("step:1", 10, step(1, reward=0.5)))
    history.is_current = False
    assert told(history, "weir_job_step") is None
    assert told(history, "weir_job_metric", "reward") is None
    assert told(history, "weir_job_steps") == 2


def test_ledgers_and_numbers_that_make_no_sense_are_no_metrics() -> None:
    history = a_history(
        ("step:1", 10, step(1, reward=2**70, groups={"asked": "x", "dropped": 1})),
        ("step:3", 40, step(3, reward=0.5)),
    )
    assert told(history, "weir_job_metric", "reward") == 0.5
    assert told(history, "weir_job_step") == 3
