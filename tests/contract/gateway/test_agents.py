"""The tools of ``weir mcp``, called by the client of the SDK, against the real gateway."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from deploy.launches import python_path
from tests.contract.gateway.stack import (
    BY_HAND,
    JOBS,
    KEY,
    READ_KEY,
    Stack,
    a_job_in,
    a_learner,
    an_event,
    fill_folder,
    know,
    record_events,
    tell,
    wait_until,
)
from weir.__main__ import main

pytestmark = pytest.mark.redis
EVALUATION = {
    "kind": "evaluation",
    "step": 3,
    "evaluation": {"step": 3, "accuracy": 0.5, "per_task": {"t0": [1, 2]}},
}
Call = tuple[str, dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, stack: Stack) -> Path:
    return fill_folder(tmp_path, stack)


def call_tools(folder: Path, *calls: Call) -> Iterator[tuple[bool, str]]:
    """Whether each call failed, and its text; all by one server that runs in the folder."""

    async def call_all() -> list[tuple[bool, str]]:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "weir", "mcp"],
            env={"PYTHONPATH": python_path({})},
            cwd=folder,
        )
        results: list[tuple[bool, str]] = []
        async with Client(server) as client:
            for tool, arguments in calls:
                result = await client.call_tool(tool, arguments)
                (content,) = result.content
                assert isinstance(content, TextContent)
                results.append((bool(result.is_error), content.text))
        return results

    return iter(anyio.run(call_all))


def read_tools(folder: Path, *calls: Call) -> list[Any]:
    results = list(call_tools(folder, *calls))
    assert not any(failed for failed, _ in results), results
    return [json.loads(text) for _, text in results]


def test_an_agent_submits_a_job_and_reads_what_came_of_it(stack: Stack, folder: Path) -> None:
    with a_learner(stack) as learned:
        (job,) = read_tools(folder, ("submit", {"recipe": "recipe.toml"}))
        with stack.http() as http:
            url = f"{JOBS}/{job['id']}"
            wait_until(lambda: http.read(url)["status"] == "succeeded")
    assert learned == [job["id"]]
    named = {"job": job["id"]}
    news, wrong, reasons = read_tools(
        folder, ("watch", named), ("samples", named | {"text": "No."}), ("why", named)
    )
    assert news["status"] == "succeeded"
    assert [event["message"] for event in news["events"]][-1] == "m12"
    assert [sample["step"] for sample in wrong] == [12]
    assert reasons["edge"] is None


def test_a_job_is_watched_in_parts_and_its_evaluations_are_read(stack: Stack, folder: Path) -> None:
    job_id = a_job_in(stack, "running")
    record_events(stack, job_id, range(1, 6))
    tell(stack, an_event(job_id, 6, data=EVALUATION))
    all_events = read_tools(folder, ("watch", {"job": job_id}))[0]["events"]
    part, last, results = read_tools(
        folder,
        ("watch", {"job": job_id, "after": all_events[0]["id"], "limit": 2}),
        ("watch", {"job": job_id, "after": all_events[-1]["id"]}),
        ("evaluations", {"job": job_id}),
    )
    assert part["events"] == all_events[1:3]
    assert last == {"id": job_id, "status": "running", "events": []}
    assert [(result["accuracy"], result["per_task"]) for result in results] == [(0.5, None)]


def test_a_plan_has_problems_and_a_wrong_recipe_is_refused(folder: Path) -> None:
    (folder / "typo.toml").write_text(BY_HAND.replace("steps =", "stepz ="))
    good, typo, absent = call_tools(
        folder,
        ("plan", {"recipe": "recipe.toml"}),
        ("plan", {"recipe": "typo.toml"}),
        ("submit", {"recipe": "absent.toml"}),
    )
    assert not good[0], good
    assert json.loads(good[1])["recipe"]["name"] == "by hand"
    assert typo[0]
    assert "training.stepz" in typo[1]
    assert absent[0]
    assert "absent.toml" in absent[1]


def test_errors_are_the_words_of_the_gateway(stack: Stack, folder: Path) -> None:
    with stack.http() as http:
        words = http.get(f"{JOBS}/ftjob-none").json()["error"]["message"]
    for tool in ("watch", "why", "samples", "evaluations"):
        (result,) = call_tools(folder, (tool, {"job": "ftjob-none"}))
        assert result == (True, f"Error executing tool {tool}: {words}")


def test_a_key_that_may_only_read_submits_nothing(stack: Stack, folder: Path) -> None:
    job_id = a_job_in(stack, "running")
    know(folder, stack.url, READ_KEY)
    jobs_before, files_before = stack.contents()
    refusal, news = call_tools(
        folder, ("submit", {"recipe": "recipe.toml"}), ("watch", {"job": job_id})
    )
    assert refusal[0]
    assert "write or admin" in refusal[1]
    assert not news[0], news
    assert stack.contents() == (jobs_before, files_before)


def test_no_answer_shows_the_key(folder: Path) -> None:
    know(folder, "http://127.0.0.1:9", KEY)
    ((failed, text),) = call_tools(folder, ("why", {}))
    assert failed
    assert "nothing responds at http://127.0.0.1:9" in text
    assert KEY not in text


def test_a_missing_sdk_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp"]) == 2
    assert "pip install 'weir[mcp]'" in capsys.readouterr().err
