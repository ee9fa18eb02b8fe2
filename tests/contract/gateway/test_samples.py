"""Samples over REST and by the command; the test plays the learner and writes the store."""

import json
from pathlib import Path

import pytest

from tests.contract.gateway.stack import JOBS, Client, Stack, know, submit_job
from tests.sample_stores import a_response, a_sample, write_samples
from weir import verbs
from weir.__main__ import main

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def job_id(stack: Stack) -> str:
    """A job with six groups, of a right and a wrong response each."""
    with stack.http() as http:
        job_id = submit_job(http)
    folder = stack.job_folder(job_id) / "samples"
    wrong = a_response(accuracy=0.0, reward=0.0, advantage=-0.5)
    groups = [
        a_sample(
            *(number, a_response(), wrong),
            texts=[f"It is {number}.", "No \x1b[31midea"],
            step=number // 2,
        )
        for number in range(6)
    ]
    write_samples(folder, *groups)
    return job_id


def test_a_job_that_has_no_store_yet_has_no_samples(http: Client) -> None:
    url = f"{JOBS}/{submit_job(http)}/samples"
    answer = http.read(url)
    assert answer["object"] == "list"
    assert answer["data"] == []
    assert not answer["has_more"]
    assert answer["summary"]["groups"] == 0


def test_the_command_lists_samples_page_by_page_and_shows_a_group(
    stack: Stack,
    job_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    know(tmp_path, stack.url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEIR_URL", raising=False)
    monkeypatch.setattr(verbs, "_SAMPLES_PER_PAGE", 4)

    def printed(*arguments: str) -> list[str]:
        assert main(["samples", job_id, *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    lines = printed("--step", "1", "--wrong")
    assert [line.split()[0] for line in lines] == ["sample", "train:3/1", "train:2/1"]
    samples = [
        json.loads(line)
        for line in printed(
            "--json",
            "--limit",
            "5",
            "--text",
            "IT IS",
        )
    ]
    assert [sample["id"] for sample in samples] == [f"train:{n}/0" for n in (5, 4, 3, 2, 1)]
    assert {"It is 4.", "No ␛[31midea"} < set(printed("train:4"))
    (group,) = map(json.loads, printed("train:4", "--json"))
    assert group["id"] == "train:4"
    assert group["step"] == 2
    assert group["task"]["id"] == "task-4"
    assert group["responses"][0]["text"] == "It is 4."
    assert printed("--text", "absent") == [f"{job_id} has no such sample"]
