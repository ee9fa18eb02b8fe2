"""A user's first hour: every verb in a process of its own, and no id is copied."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import expect, sync_playwright

from deploy.processes import free_ports
from tests.contract.page.conftest import CHROMIUM, FLAGS
from tests.stack.conftest import ROOT, of_home, variables, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
STEPS = 8
RECIPE = f"""
extends = "{ROOT}/recipes/demo-grpo.toml"
without = ["evaluation"]
name = "the first"
[rollout]
group_size = 4
[training]
steps = {STEPS}
groups_per_step = 4
checkpoint_every = 4
"""


class User:
    """Runs verbs in the project's folder. ``home`` has the stack, and all that it writes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.recipe = home.with_name("recipe.toml")
        self.recipe.write_text(RECIPE)

    def begin(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "weir", *words]
        settings = variables(self.home)
        return subprocess.Popen(command, cwd=ROOT, env=settings, text=True, **streams)

    def weir(self, *words: str, says: str | None = None) -> str:
        process = self.begin(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        output, _ = process.communicate(says, timeout=600)
        assert process.returncode == 0, (words, output)
        return output

    def up(self) -> str:
        """Start a stack in the background, and return the link that a terminal shows."""
        master, terminal = os.openpty()
        process = self.begin("up", "--detach", stdin=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        output = ""
        while not (link := re.search(r"open the page: (\S+/#key=\S+)\r", output)):
            assert process.poll() is None, output
            output += os.read(master, 1000).decode()
        assert process.wait(60) == 0
        os.close(master)
        return link[1]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path / "home")
    try:
        yield user
    finally:
        subprocess.run([sys.executable, "-m", "weir", "down"], cwd=ROOT, env=variables(user.home))


def test_a_job_outlives_the_terminal_and_is_found_read_asked_fetched_and_served(
    user: User, tmp_path: Path
) -> None:
    link = user.up()
    supervisor = psutil.Process(json.loads((user.home / "stack.json").read_text())["pid"])
    terminal = user.begin("run", str(user.recipe), stdout=subprocess.PIPE)
    assert terminal.stdout is not None
    assert any(line.startswith("step ") for line in terminal.stdout)
    terminal.send_signal(signal.SIGHUP)  # its window is closed
    terminal.communicate(timeout=60)
    assert " at step " in user.weir("why")
    read_page(link)

    assert "succeeded" in user.weir("watch")
    events = map(json.loads, user.weir("watch", "--json").splitlines())
    steps = [event["data"]["step"] for event in events if "entropy" in event.get("data", {})]
    assert steps == list(range(1, STEPS + 1)), "nothing is lost"
    assert len(re.findall(r"^train:\d+/\d", user.weir("samples", "--limit", "9"), re.M)) == 9
    assert user.weir("chat", "--max-tokens", "8", says="2+3=?").strip()
    assert "the first" in user.weir("jobs", "--find", "the first")

    user.weir("fetch", str(tmp_path / "fetched"))
    command = user.weir("serve").partition("&& ")[2]
    user.weir("down")
    supervisor.wait(60)
    assert not of_home(user.home)
    serve(shlex.split(command), tmp_path / "fetched")


def read_page(link: str) -> None:
    """Open the link: the page has taken the key, and shows the job."""
    if not os.access(CHROMIUM, os.X_OK):
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        page = browser.new_page()
        page.goto(link)
        page.get_by_role("link", name="the first").click()
        expect(page.get_by_role("heading", name="the first")).to_be_visible(timeout=60_000)
        assert "#key=" not in page.url
        browser.close()


def serve(command: list[str], folder: Path) -> None:
    """Run the command that `weir serve` shows in the fetched folder, and ask the model."""
    port = str(next(free_ports()))
    options = ["--port", port, "--enforce-eager"]
    name = command[command.index("--served-model-name") + 1]
    command[command.index("--model") + 1] = str(folder)
    settings = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    server = subprocess.Popen([*command, *options], env=settings)
    url = f"http://127.0.0.1:{port}/v1/completions"
    body = {"model": name, "prompt": "2+3=?", "max_tokens": 4}

    def answers() -> bool:
        assert server.poll() is None, "vLLM did not start"
        with suppress(httpx.TransportError):
            reply = httpx.post(url, json=body, timeout=60)
            return reply.json()["usage"]["completion_tokens"] > 0
        return False

    try:
        wait_for(answers, 300, "an answer of vLLM")
    finally:
        server.terminate()
        server.wait(60)
