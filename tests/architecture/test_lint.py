"""The lint of the project and its boundaries of imports: the tree passes, mistakes are told."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.project import FOLDERS, ROOT

LONG = "\n\ndef endless():\n" + "    pass\n" * 50
# By file: what is added at its end, and what the lint then says of the file.
MISTAKES = {
    "README.md": (
        "`deploy/size.md`, [a picture](none.png), `make soaking`, `python -m services.nowhere`, "
        "`weir start`\n```python\ndef f(:\n```\n",
        (
            "deploy/size.md is not there",
            "the link to none.png leads nowhere",
            "there is no make soaking",
            "there is no module services.nowhere",
            "there is no weir start",
            "python: invalid syntax",
        ),
    ),
    "ARCHITECTURE.md": (
        "| `services/grader/worker.py` | `Admission.never` | is not there |\n",
        ("there is no Admission.never",),
    ),
    "proto/protocol/streams.py": (
        '__doc__ = __doc__.replace("ActiveJob  ", "IdleJob    ")\n',
        ("no stream active | ActiveJob | learner",),
    ),
    "deploy/runbooks.md": ("Look again.\n", ("DataDiskFull is not what runbooks.json says",)),
    "deploy/processes.py": (
        f'_X = "/root/x", r"(a)++b"{LONG}',
        ("/root/ is of one machine", "a possessive group", "endless has 51 lines"),
    ),
    "deploy/prometheus/rules.yml": (
        '# weir_none, weir_ready{colour="red"}, rate(weir_ready[5m])\n',
        ("no service exports weir_none", "weir_ready has no label colour", "weir_ready is a gauge"),
    ),
    "docs/reference/metrics.md": ("`weir_none`\n", ("no service exports weir_none",)),
    "recipes/demo-grpo.toml": ("tasksize = 1\n", ("tasksize",)),
    "recipes/lost.toml": (
        (ROOT / "recipes/demo.toml").read_text().replace("/base-model", "/no-model"),
        ("examples/arithmetic/no-model/config.json is not there",),
    ),
    "recipes/README.md": ("", ("lost.toml is not in the index",)),
}
BREACHES = {
    "services -> chassis -> protocol": ("proto/protocol/tasks.py", "services.chassis"),
    "services meet only in the protocol": (
        "services/gateway/core/jobs/events.py",
        "services.grader",
    ),
    "the command is a client": ("weir/views.py", "services.gateway"),
    "all but the engines is slim": ("services/grader/worker.py", "torch"),
    "answers are a library": ("packages/answers/src/answers/equality.py", "services.grader.tools"),
    "data is prepared with the grader's reader, comparer and pool": (
        "services/data/check.py",
        "services.grader.judge",
    ),
    "the gateway's edge is above its core": (
        "services/gateway/core/models/folders.py",
        "services.gateway.api.calls",
    ),
    "the rooms of the gateway's edge": (
        "services/gateway/api/openai/body.py",
        "services.gateway.api.calls",
    ),
    "the rooms of the gateway's core": (
        "services/gateway/core/models/folders.py",
        "services.gateway.core.jobs",
    ),
    "the rooms of the learner": (
        "services/learner/supply/feeder.py",
        "services.learner.job.learning",
    ),
    "an algorithm is torch and the standard library": (
        "services/learner/algorithms/advantages.py",
        "numpy",
    ),
    "redis has one door": ("services/chassis/consumer.py", "redis"),
    "vLLM has one door": ("services/rollout/samples.py", "vllm"),
    "DeepSpeed has one door": ("services/learner/job/learning.py", "deepspeed"),
    "Ray has one door": ("deploy/local.py", "ray"),
    "OpenEnv's wire has one door": ("services/environment/gateway_client.py", "websockets"),
    "deploy starts services and imports none": ("deploy/local.py", "protocol.streams"),
    "services import neither weir nor deploy": (
        "services/learner/job/run.py",
        "deploy.local",
    ),
    "a placement is the standard library": ("proto/protocol/placement.py", "numpy"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def run(tree: Path, *command: str) -> list[str]:
    path = f"{tree / 'proto'}:{tree}:{tree / 'packages/answers/src'}"
    ran = subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout.splitlines()


def test_the_lint_tells_every_kind_of_mistake_and_finds_no_other(tree: Path) -> None:
    for path, (text, _) in MISTAKES.items():
        add(tree / path, text)
    faults = run(tree, "python", "-m", "tests.lint")
    expected = [(path, words) for path, (_, all_words) in MISTAKES.items() for words in all_words]
    for path, words in expected:
        where = "ARCHITECTURE.md" if path.endswith("streams.py") else path
        matching = [line for line in faults if line.startswith(f"{where}:") and words in line]
        assert len(matching) == 1, (path, words, faults)
        faults.remove(matching[0])
    assert faults == []


def test_imports_keep_the_boundaries_and_every_contract_notices_its_breach(tree: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert {contract["name"] for contract in settings["contracts"]} == set(BREACHES)
    assert not [line for line in run(tree, "lint-imports", "--no-cache") if "BROKEN" in line]
    for path, module in BREACHES.values():
        add(tree / path, f"\nimport {module}\n")
    broken = "\n".join(run(tree, "lint-imports", "--no-cache"))
    assert [name for name in BREACHES if f"{name} BROKEN" not in broken] == [], broken
