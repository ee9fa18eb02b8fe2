"""The images and the compose file as they are: a job learns, containers die, the stack comes back.

Not part of `make test`: ``make test-containers``, or ``pytest -m containers``. It needs root, and a
docker engine or a Debian on which prepare.sh can make up for one.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.containers.conftest import SERVICES, Stack, container
from tests.containers.engines import Engine
from tests.stack.conftest import Json, wait_for

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


def is_sound(job: Json) -> bool:
    """Whether it learned, and every prompt is accounted for."""
    result = job["weir"]["result"]
    groups = result["groups"]
    closed = groups["asked"] == groups["trained"] + sum(groups["dropped"].values())
    return job["status"] == "succeeded" and closed and result["trained_tokens"] > 0


def test_a_job_learns(trained: Json) -> None:
    assert is_sound(trained), trained
    groups = trained["weir"]["result"]["groups"]
    assert groups["trained"] == groups["asked"] > 0


@pytest.mark.parametrize(
    ("service", "user", "heavy"),
    [
        ("gateway", 10001, {"fastapi"}),
        ("learner", 10002, {"torch", "deepspeed"}),
        ("rollout", 10003, {"torch", "vllm", "fastapi"}),
        ("grader", 10004, {"math_verify"}),
        ("environment", 10005, {"verifiers", "math_verify"}),
    ],
)
def test_a_container_may_do_little_holds_its_service_alone_and_is_healthy(
    stack: Stack, service: str, user: int, heavy: set[str]
) -> None:
    status = stack.execute(service, "cat", "/proc/1/status")
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert facts["Uid"].split() == [str(user)] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    mounts = [line.split() for line in stack.execute(service, "cat", "/proc/mounts").splitlines()]
    (root,) = (options for _, place, _, options, *_ in mounts if place == "/")
    assert "ro" in root.split(",")
    folders = set(stack.execute(service, "ls", "/app/services").split())
    if service == "grader":  # whose reader `weir data` uses
        folders.remove("data")
    assert folders == {"__init__.py", "chassis", service}
    packages = ("torch", "vllm", "deepspeed", "fastapi", "math_verify", "verifiers")
    look = f"import importlib.util as u; print(*(n for n in {packages} if u.find_spec(n)))"
    assert set(stack.execute(service, "python3", "-c", look).split()) == heavy
    wait_for(lambda: stack.engine.is_healthy(container(service)), 240, f"{service} to be healthy")


def test_prometheus_reaches_every_service_and_has_the_last_evaluation_of_a_job(
    stack: Stack, trained: Json
) -> None:
    def query(expression: str) -> list[dict[str, str]]:
        query = ["promtool", "query", "instant", "-o", "json", "http://127.0.0.1:9090", expression]
        return [series["metric"] for series in json.loads(stack.execute("prometheus", *query))]

    def reached() -> bool:
        up = query('up{job=~"weir|redis"} == 1')
        return {m.get("service", m["job"]) for m in up} == {*SERVICES, "redis"}

    wait_for(reached, 240, "every target to be up")
    metric = f'weir_job_evaluation{{job="{trained["id"]}",name="accuracy"}}'
    wait_for(lambda: bool(query(metric)), 120, metric)


def test_the_gateway_shows_what_the_learner_has_kept(stack: Stack, trained: Json) -> None:
    words = ["weir", "samples", trained["id"], "--correct", "--limit", "3", "--json"]
    samples = [json.loads(line) for line in stack.execute("gateway", *words).splitlines()]
    assert [sample["accuracy"] for sample in samples] == [1.0] * 3
    page = httpx.get(stack.facts["url"])
    assert "static/js/main.js" in page.text


@pytest.mark.parametrize(
    ("service", "words", "status", "text"),
    [
        ("learner", "plan /workspace/recipes/demo.toml", 0, "rollout"),
        ("grader", "data --help", 0, "usage"),
        ("gateway", "plan x.toml", 2, "docker compose run --rm learner weir plan x.toml"),
        ("learner", "jobs", 2, "docker compose exec gateway weir jobs"),
        ("gateway", "up", 2, "for the machine that the stack runs on"),
    ],
)
def test_weir_runs_a_verb_where_its_service_is(
    stack: Stack, service: str, words: str, status: int, text: str
) -> None:
    command = [stack.engine.program, "exec", container(service), "weir", *words.split()]
    done = subprocess.run(
        command,
        env=stack.engine.environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, text in done.stdout + done.stderr) == (status, True), done


def test_an_image_has_a_list_of_its_packages(running_engine: Engine, tmp_path: Path) -> None:
    running_engine.build("grader", "--target", "sbom", "--output", str(tmp_path))
    listed = json.loads((tmp_path / "grader.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    names = {component["name"].lower() for component in listed["components"]}
    assert "math-verify" in names
    assert not names & {"torch", "cyclonedx-bom"}


def test_every_container_may_die(stack: Stack, trained: Json) -> None:
    job = stack.train(steps=60)
    stack.wait_for_step(job, 1)
    for service in sorted(stack.services):
        step = stack.step(job)
        stack.kill(service)
        stack.wait_for_step(job, step + 2)
    assert is_sound(stack.wait_for_end(job))


def test_a_stopped_stack_keeps_its_jobs_and_models(stack: Stack, trained: Json) -> None:
    jobs = stack.job_ids()
    stack.compose("stop", "--timeout", "10")
    stack.compose("start", *stack.services)
    stack.wait_until_ready()
    assert stack.job_ids() == jobs
    model = stack.weir.job(trained["id"])["weir"]["result"]["model"]
    assert "model.safetensors" in stack.execute("learner", "ls", model)


def test_a_trained_model_can_be_fetched(stack: Stack, trained: Json, tmp_path: Path) -> None:
    stack.weir.fetch_model(trained["id"], tmp_path / "model")
    assert (tmp_path / "model/model.safetensors").stat().st_size > 1_000_000
