"""Requests as the OpenAPI document describes them, and as it does not, by schemathesis.

With the ids of a job and a file that exist, with a key and without. No answer may be a 5xx, and
none of a status, type or shape that is undocumented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.contract.gateway.stack import (
    KEY,
    Stack,
    a_job,
    a_model,
    record_events,
    take_up,
    upload,
)
from tests.fuzz.bodies import TRIALS

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_KEY = {"Authorization": f"Bearer {KEY}"}
_WAYS: Sequence[tuple[GenerationMode, dict[str, str], float]] = (
    (GenerationMode.POSITIVE, _KEY, 0.6),
    (GenerationMode.NEGATIVE, _KEY, 0.3),
    (GenerationMode.POSITIVE, {}, 0.1),
)
Answers = Counter[tuple[str, int]]


def try_requests(stack: Stack, count: int, number: int) -> Answers:
    """About so many requests to every route; what it answered.

    Raises:
        Exception: schemathesis's own, showing the request, if an answer is not as documented.
    """
    document = requests.get(f"{stack.url}/openapi.json", timeout=20).json()
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    operations = [each for each in operations if each.path != TRIALS]
    operations.sort(key=lambda each: each.method == "delete")  # which others ask for
    known, answers = _known(stack), Answers()
    for operation in operations:
        there = known
        if operation.method == "post":  # a job that has ended is asked for nothing
            there = known | {"job_id": known["queued"]}
        taken = {name: there[name] for name in there if f"{{{name}}}" in operation.path}
        for mode, headers, share in _WAYS:
            cases = operation.as_strategy(mode, path_parameters=taken or None)
            if mode is GenerationMode.POSITIVE:
                cases = cases.map(lambda case: _with_known(case, known))
            most = max(1, round(count * share / len(operations)))
            _try(cases, most, number, stack.url, headers, answers)
    return answers


def _with_known(case: Case, known: dict[str, str]) -> Case:
    """The names in a body are of what exists."""
    if isinstance(case.body, dict):
        names = {"model": known["model"], "training_file": known["file_id"]}
        case.body.update({name: names[name] for name in names if name in case.body})
    return case


def _try(
    cases: Any, most: int, number: int, url: str, headers: dict[str, str], answers: Answers
) -> None:
    @seed(number)
    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=cases)
    def ask(case: Case) -> None:
        answer = case.call_and_validate(
            base_url=url, session=session, headers=headers, checks=_CHECKS, timeout=60
        )
        answers[case.operation.label, answer.status_code] += 1

    with requests.Session() as session:
        ask()


def _known(stack: Stack) -> dict[str, str]:
    """Ids of what exists; the job has ended, so that its events do, and has a model."""
    with stack.http() as http:
        job_id, queued, file_id = a_job(http)["id"], a_job(http)["id"], upload(http).json()["id"]
    record_events(stack, job_id, range(3))
    folder = a_model(stack.data_dir / "jobs" / job_id / "model")
    take_up(stack, job_id, state="succeeded", result={"model": str(folder)})
    known = {"job_id": job_id, "queued": queued, "file_id": file_id}
    return known | {"name": "config.json", "model": "tiny"}
