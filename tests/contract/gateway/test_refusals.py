"""Every wrong input is a 4xx that names the field (and the line), and leaves nothing behind.

Which inputs are wrong is a matter of tests/unit/gateway; here are some of every kind.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.gateway.stack import (
    GOOD_LINE,
    JOBS,
    RECIPE,
    Stack,
    a_body,
    assert_refused,
    changed,
    reinforcement,
    upload,
)

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def nothing_is_left(stack: Stack, http: httpx.Client) -> Iterator[None]:
    """No job and no file comes of what is refused; the tasks of `a_body` are there before."""
    upload(http)
    before = stack.left()
    yield
    assert stack.left() == before


pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("nothing_is_left")]
BAD_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": (
        {"recipe": changed(RECIPE, "training.stepz", 3)},
        "recipe.training.stepz",
    ),
    "half a character": ({"metadata": {"\ud83d": "a"}}, r"metadata.\ud83d"),
    "no such model": ({"model": "absent"}, "model"),
    "no such critic": (
        {"recipe": RECIPE | {"critic": {"path": "absent"}, "algorithm": {"advantage": "gae"}}},
        "recipe.critic.path",
    ),
    "no such training file": ({"training_file": "file-0"}, "training_file"),
    "a grader whose code is none": (
        {"method": reinforcement(grader={"type": "python", "source": "x"})},
        "method.reinforcement.grader.source",
    ),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_submission_is_refused_naming_the_field(http: httpx.Client, case: str) -> None:
    changes, param = BAD_BODIES[case]
    reply = http.post(JOBS, content=json.dumps(a_body(http, **changes)), headers=JSON)
    assert_refused(reply, 400, param)


@pytest.mark.parametrize(
    ("content", "headers", "status", "param"),
    [
        (b"{not json", JSON, 400, "body"),
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 400, "body"),
        (b" " * (2**20 + 1), JSON, 413, "body"),
        (gzip.compress(b"{}"), JSON | {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    ],
    ids=["half", "form", "large", "compressed"],
)
def test_a_body_that_is_no_json_object_is_refused(
    http: httpx.Client, content: bytes, headers: dict[str, str], status: int, param: str
) -> None:
    assert_refused(http.post(JOBS, content=content, headers=headers), status, param)


def test_a_grader_that_no_service_can_read_is_refused(http: httpx.Client) -> None:
    body = json.dumps({"grader": {"type": "string_check", "reference": "\ud83d"}})
    reply = http.post("/v1/fine_tuning/alpha/graders/validate", content=body, headers=JSON)
    assert_refused(reply, 400, "grader.reference")


@pytest.mark.parametrize("key", [None, "test-key-and-more"])
@pytest.mark.parametrize("path", ["/v1/files", JOBS, f"{JOBS}/x/events", "/v1/nothing"])
def test_nothing_below_v1_opens_without_a_key(stack: Stack, key: str | None, path: str) -> None:
    with stack.http(key) as stranger:
        assert_refused(stranger.get(path), 401, "Authorization")
        assert_refused(stranger.post(path, json={"model": "tiny"}), 401, "Authorization")


def test_a_job_that_could_fill_redis_is_refused(stack: Stack, http: httpx.Client) -> None:
    def limit(value: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", value))

    body = a_body(http, recipe=changed(RECIPE, "training.groups_per_step", 4096))
    limit(32 * 2**20)  # (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes are as many
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")
    assert "33,554,432 bytes" in reply.json()["detail"]


# ---------------------------------------------------------------------- files

BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "not JSON": (GOOD_LINE + "{oops\n", "line 2:"),
    "nothing in it": ("\n", "line 1:"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_task_file_is_refused_naming_line_and_field(http: httpx.Client, case: str) -> None:
    content, place = BAD_FILES[case]
    reply = upload(http, content)
    assert_refused(reply, 400, "file")
    assert place in reply.json()["detail"]
