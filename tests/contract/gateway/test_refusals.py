"""Wrong requests are refused by the fields that refusals.txt lists."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol.operations import OperationLog

from tests.contract.gateway.stack import Client, Stack, assert_refused, submit_job, upload

pytestmark = pytest.mark.redis


def read_requests() -> Iterator[tuple[str, str, str]]:
    """The route, the refused field and the body of each, or the rest of its URL."""
    route = start = ""
    for line in Path(__file__).with_name("refusals.txt").read_text().splitlines():
        if line.startswith(" "):
            field, body = line.split(maxsplit=1)
            yield route, field, body.replace("…", start)
        elif line[:1] not in {"", "#"}:
            route, _, start = line.partition(", … = ")


@pytest.fixture(scope="module")
def names(stack: Stack) -> dict[str, str]:
    with stack.http() as http:
        body = {"session_id": "refused", "model_seq_id": 0, "base_model": "tiny"}
        return {
            "{file}": upload(http).json()["id"],
            "{job}": submit_job(http),
            "{session}": http.post("/api/v1/create_model", json=body).json()["model_id"],
        }


@pytest.mark.parametrize(("route", "field", "body"), [*read_requests()])
def test_a_wrong_request_is_refused_by_its_field(
    stack: Stack,
    http: Client,
    names: dict[str, str],
    route: str,
    field: str,
    body: str,
) -> None:
    log = OperationLog(stack.job_folder(names["{session}"]))
    number = log.last + 1
    is_operation = "{number}" in body
    for name, value in {**names, "{number}": str(number)}.items():
        body = body.replace(name, value)
    method, path = route.split()
    if method in {"GET", "DELETE"}:
        reply = http.request(method, path + body)
    else:
        headers = {"Content-Type": "application/json"}
        reply = http.request(method, path, content=body, headers=headers)
    status, _, field = field.rpartition(":")
    assert_refused(reply, int(status or 400), field or None)
    operation = log.operation(number)
    assert (operation is not None) is is_operation
    if operation is not None:
        assert operation.do == "refuse"
        assert operation.why == reply.json()["detail"]


def test_a_body_that_is_no_json_is_refused_with_the_place_and_the_remedy(http: Client) -> None:
    headers = {"Content-Type": "application/json"}
    reply = http.post("/v1/fine_tuning/jobs", content='{\n "model": "tiny",\n}', headers=headers)
    assert_refused(reply, 400, "body")
    place = "line 3, column 1, '}'"
    assert (
        reply.json()["detail"] == f"body: not valid JSON at {place}: remove the comma before '}}'"
    )
