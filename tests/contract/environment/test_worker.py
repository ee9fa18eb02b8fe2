"""Environment workers at the real gateway: episodes end, break, hang, and are never lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol.calls import Call, Refusal
from protocol.messages import Turn
from protocol.streams import EPISODES, FAILED, ROLLOUTS
from protocol.tasks import read_tasks

from deploy.processes import free_ports
from tests.architecture.project import ROOT
from tests.contract.environment.conftest import PYTHON, TASKSET, Player, list_episodes
from tests.contract.exchange_steps import until
from tests.contract.gateway.fake_rollout import COUNTED
from tests.contract.gateway.stack import KEY, Stack

_NAP_S = "1000.0625"  # a number that no other process has
COUNTS = "0 1 2 3 4 "  # the reply of the model
_AGENT = """
import json, os, sys, time
from urllib.request import Request, urlopen
messages, said = [], []
def ask(text):
    messages.append({"role": "user", "content": text})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    headers["Content-Type"] = "application/json"
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    reply = json.load(urlopen(Request(url, body, headers), timeout=60))
    messages.append(reply["choices"][0]["message"])
    said.append(messages[-1]["content"])
"""


def an_agent(*lines: str) -> list[str]:
    """A program of these lines, which may ``ask`` a text and find the replies in ``said``."""
    return ["python", "-c", _AGENT + "\n".join(lines)]


def find_naps() -> list[int]:
    """Return the processes of this machine that sleep for an agent."""
    process_ids = list[int]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if _NAP_S.encode() in path.read_bytes().split(b"\0"):
                process_ids.append(int(path.parent.name))
    return process_ids


def test_the_tasks_that_a_taskset_brings_can_be_read(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "services.environment", "tasks", TASKSET]
    (tmp_path / "tasks.jsonl").write_bytes(
        subprocess.check_output(
            command,
            cwd=ROOT,
            timeout=120,
        )
    )
    (task,) = read_tasks(tmp_path / "tasks.jsonl")
    assert (task.id, task.problem) == ("first", "Count.")
    assert task.metadata["task"] == {"idx": 0, "name": "first", "prompt": "Count."}


async def test_an_agent_asks_twice_and_says_the_reward(player: Player) -> None:
    player.start(PATH="/usr/bin:/bin")
    agent = an_agent(
        "import shutil; assert shutil.which('uv')",
        f"assert {KEY!r} not in os.environ.values()",
        "ask('ab')",
        "ask('cd')",
        "print(said)",
        "print(0.5)",
    )
    group = await player.group(size=2, command=agent)
    reply = [COUNTED + number for number in range(5)]
    assert group.prompt_ids.tolist() == [*b"ab"]
    assert group.token_ids.tolist() == 2 * [*reply, *b"cd", *reply]
    assert group.policy_mask.tolist() == 2 * [*[1] * 5, 0, 0, *[1] * 5]
    conversation = [
        ("user", "ab"),
        ("assistant", COUNTS),
        ("user", "cd"),
        ("assistant", COUNTS),
    ]
    for response, episode in zip(group.responses, list_episodes(group), strict=True):
        spans = [
            (
                span.version,
                span.start,
                span.end,
            )
            for span in response.spans
        ]
        assert spans == [(7, 0, 5), (7, 5, 12)]
        assert response.text == f"{COUNTS}\n\n{COUNTS}"
        assert (episode.reward, episode.turns, episode.problem) == (0.5, 2, "")
        assert episode.conversation == tuple(Turn(role=r, content=c) for r, c in conversation)
        assert set(episode.seconds) == {"model", "environment"}
    terms = [call.terms for call in player.rollout.calls if call.terms is not None]
    assert {term.job_id for term in terms} == {group.request.job_id}
    assert {(term.min_version, term.sampling.max_tokens) for term in terms} == {(3, 8)}
    assert len({term.seed for term in terms}) == 2


async def test_of_an_episode_with_branches_the_longest_is_trained_and_an_event_says_so(
    player: Player,
) -> None:
    agent = an_agent("ask('a')", "messages.clear()", "ask('b')", "ask('c')", "print(1)")
    job_id = await player.ask(groups=2, command=agent)
    for group in await player.receive(job_id, 2):
        assert (group.prompt_ids.tolist(), group.policy_lengths.tolist()) == ([ord("b")], [10])
    event_ids = [event.id for _, event in await player.exchange.events(job_id)]
    assert event_ids.count("branches:1") == 1


@pytest.mark.parametrize(
    ("last_line", "problem", "words"),
    [
        ("raise KeyError('no row')", "episode_failed", "no row"),
        ("sys.exit(3)", "episode_failed", "exit status 3"),
        ("print('{\"reward\": null}')", "no_reward", "gave no reward"),
        ("print('well done')", "no_reward", "well done"),
        ("print('NaN')", "no_reward", "NaN"),
    ],
)
async def test_what_breaks_is_tried_again_and_then_has_a_problem_and_no_tokens(
    player: Player, last_line: str, problem: str, words: str
) -> None:
    group = await player.group(command=an_agent("ask('a')", last_line), retries=2)
    (episode,) = list_episodes(group)
    assert (episode.problem, episode.reward, episode.turns) == (problem, None, 1)
    assert words in episode.words
    assert episode.conversation[0] == Turn(role="user", content="a")
    assert (group.lengths.tolist(), group.responses[0].text) == ([0], COUNTS)
    assert len(player.rollout.calls) == 3


AWAY = Refusal(status=503, code="not_taken", message="no rollout has room")
BROKEN = Refusal(status=500, code="engine_error", message="the engine fails")
ONCE = "os.mkdir('/tmp/tried') if not os.path.exists('/tmp/tried') else print(1)"
REPEATS = ["try: ask('a')", "except OSError:", "    messages.clear()", "    ask('a')", "print(1)"]


@pytest.mark.parametrize(
    ("lines", "retries", "refusal", "num_calls"),
    [
        pytest.param(["ask('a')", ONCE], 1, None, 2, id="a later try"),
        pytest.param(
            ["ask('a')", "os.system('sleep 1000 &')", "print(1)"], 0, None, 1, id="leaves a process"
        ),
        pytest.param(REPEATS, 0, AWAY, 2, id="repeats a failed call"),
        pytest.param(["ask('a')", "print(1)"], 0, BROKEN, 3, id="the engine fails"),
        pytest.param(["ask('a')", "print(1)"], 0, AWAY, 3, id="no rollout"),
    ],
)
async def test_an_episode_counts_if_its_program_ends_well_in_the_end(
    player: Player, lines: list[str], retries: int, refusal: Refusal | None, num_calls: int
) -> None:
    """A group is given back while the model fails, which is no try of its episodes."""
    calls = player.rollout.calls
    player.rollout.refuse = lambda _: refusal if len(calls) < num_calls else None
    assert (await player.episode(command=an_agent(*lines), retries=retries)).reward == 1
    assert len(calls) == num_calls


async def test_a_hung_episode_ends_at_its_deadline_and_the_others_of_its_group_count(
    player: Player,
) -> None:
    """Its program has started one of its own, which ends with it."""
    agent = an_agent(
        "is_first = not os.path.exists('/tmp/first')",
        "os.makedirs('/tmp/first', exist_ok=True)",
        "ask('a')",
        f"is_first and os.system('sleep {_NAP_S}')",
        "print(1)",
    )
    group = await player.group(
        size=2,
        command=agent,
        episode_timeout_s=10,
        concurrency=1,
    )
    episodes = [(episode.problem, episode.reward) for episode in list_episodes(group)]
    assert episodes == [("episode_timeout", None), ("", 1)]
    metrics = httpx.get(f"http://127.0.0.1:{player.port}/metrics").text
    for outcome, number in (("episode_timeout", 1), ("ended", 1), ("no_reward", 0)):
        assert f'weir_episodes_total{{outcome="{outcome}"}} {number}.0' in metrics
    await until(lambda: not find_naps())


def counting(**fields: Any) -> dict[str, Any]:
    """A task of the taskset."""
    return {"metadata": {"task": {"prompt": "Count.", **fields}}}


async def test_a_taskset_is_played_by_its_own_agent(player: Player) -> None:
    group = await player.group(
        taskset=TASKSET,
        task=counting(answer=COUNTS.strip()),
        max_turns=2,
    )
    (episode,) = list_episodes(group)
    assert (episode.reward, episode.turns) == (1, 2)
    assert group.prompt_ids.tolist() == [*b"Count."]
    assert group.policy_lengths.tolist() == [10]
    for ends, problem in (("raises", "no such row"), ("unpaid", "gave no reward")):
        assert problem in (await player.episode(taskset=TASKSET, task=counting(ends=ends))).words


async def test_a_taskset_keeps_no_connection_of_an_episode_that_has_ended(
    player: Player,
) -> None:
    settings = {"taskset": TASKSET, "max_turns": 2, "concurrency": 1}
    job_id = await player.ask(
        groups=3,
        task=counting(ends="alone"),
        **settings,
    )
    groups = await player.receive(job_id, 3)
    assert [episode.reward for episode in list_episodes(*groups)] == [1, 1, 1]


async def test_a_taskset_that_a_network_keeps_from_loading_is_tried_again(
    player: Player, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "hub")
    (tmp_path / "passing.py").write_text(
        "import pathlib\n"
        "if pathlib.Path(__file__).with_name('hub').read_text() == 'away':\n"
        "    raise ConnectionError('the hub is away')\n"
        f"from {TASKSET} import Tasks, Twice\n"
        "__all__ = ['Tasks', 'Twice']\n"
    )
    path = f"{ROOT / 'proto'}:{ROOT}:{tmp_path}"
    player.start(PYTHONPATH=path, WEIR_ENVIRONMENT_TASKSETS="passing")
    job_id = await player.ask(taskset="passing", task=counting(answer=COUNTS.strip()))
    for state in ("away", "here"):
        await asyncio.to_thread((tmp_path / "hub").write_text, state)
    (episode,) = list_episodes(*await player.receive(job_id))
    assert episode.reward == 1


@pytest.mark.parametrize("size", [8, 1])
async def test_64_episodes_wait_at_the_same_time_in_one_thread(player: Player, size: int) -> None:
    """Each waits until it is one of 64; a 65th would break. Groups of an evaluation are small."""
    worker = player.start()
    task = {"prompt": "Count.", "metadata": {"crowd": 64}}
    settings = {"concurrency": 64, "retries": 0, "episode_timeout_s": 120}
    job_id = await player.ask(
        taskset=TASKSET,
        groups=128 // size,
        size=size,
        task=task,
        **settings,
    )
    groups = await player.receive(job_id, 128 // size, within_s=240)
    assert {episode.problem for episode in list_episodes(*groups)} == {""}
    status = Path(f"/proc/{worker.pid}/status").read_text()
    assert int(status.partition("Threads:")[2].split()[0]) < 32


@pytest.fixture
def game(stack: Stack) -> Iterator[str]:
    """The address of an OpenEnv server with a place for one."""
    port = next(free_ports())
    command = [
        sys.executable,
        str(Path(__file__).with_name("openenv_server.py")),
        f"{port}",
        "1",
    ]
    with subprocess.Popen(command) as process:
        yield f"http://127.0.0.1:{port}"
        process.kill()


def a_game(ends: str) -> dict[str, Any]:
    return {"prompt": "Play.", "metadata": {"seed": 7, "ends": ends}}


@pytest.mark.parametrize(
    ("ends", "reward", "problem", "turns"),
    [
        ("soon", 0.25, "", 1),
        ("never", 0.75, "", 3),
        ("invalid", 0, "", 1),
        ("unpaid", None, "no_reward", 1),
        ("broken", None, "episode_failed", 1),
        ("gone", None, "episode_failed", 1),
    ],
)
async def test_the_rewards_of_a_game_are_added_until_it_or_the_turns_end(
    player: Player, game: str, ends: str, reward: float | None, problem: str, turns: int
) -> None:
    """The two of a group wait for the server's only place."""
    settings = {"settings": {"level": 2}, "max_turns": 3, "retries": 0}
    group = await player.group(
        url=game,
        task=a_game(ends),
        size=2,
        **settings,
    )
    for episode in list_episodes(group):
        outcome = (episode.reward, episode.problem, episode.turns)
        assert outcome == (reward, problem, turns), episode.words
        assert ends != "gone" or "OpenEnv server" in episode.words
        user_turns = [turn.content for turn in episode.conversation if turn.role == "user"]
        assert user_turns == ["Play.\n\nseed 7, level 2", *["go on"] * (turns - 1)]


def full_behind_a_reply(call: Call) -> Refusal | None:
    full = Refusal(status=400, code="context_length_exceeded", message="the context is full")
    return full if len(call.messages or ()) > 1 else None


@pytest.mark.parametrize(
    ("last_lines", "reward", "problem"),
    [
        (["ask('b')", "print(1)"], 0, ""),
        (["try: ask('b')", "except OSError: print(0.5)"], 0.5, ""),
        (
            ["try: ask('b')", "except OSError: messages.clear()", "ask('c')", "1 / 0"],
            None,
            "episode_failed",
        ),
    ],
)
async def test_a_full_context_is_the_policys_own_fault_unless_an_agent_goes_on(
    player: Player, last_lines: Sequence[str], reward: float | None, problem: str
) -> None:
    player.rollout.refuse = full_behind_a_reply
    group = await player.group(command=an_agent("ask('a')", *last_lines), retries=0)
    (episode,) = list_episodes(group)
    assert (episode.reward, episode.problem) == (reward, problem)
    assert (group.responses[0].finish_reason == "length") == (not problem)


async def test_tasksets_and_games_end_with_what_they_have_where_the_context_is_full(
    player: Player, game: str
) -> None:
    player.rollout.refuse = full_behind_a_reply
    taskset = await player.group(taskset=TASKSET, task=counting())
    played = await player.group(
        url=game,
        task=a_game("never"),
        settings={"level": 2},
    )
    assert [episode.reward for episode in list_episodes(taskset, played)] == [0.0, 0.25]
    for group in (taskset, played):
        assert group.responses[0].finish_reason == "length"


async def test_a_worker_that_is_killed_amid_episodes_is_replaced_and_nothing_comes_twice(
    player: Player, tmp_path: Path
) -> None:
    """Programs see which files there are when their process begins."""
    folder = tmp_path / "seen"
    folder.mkdir()
    path = f"{ROOT / 'proto'}:{ROOT}:{folder}"
    worker = player.start(PYTHONPATH=path)
    nap = f"os.path.exists('{folder}/go') or os.system('sleep {_NAP_S}')"
    agent = an_agent("ask('a')", nap, "print(1)")
    job_id = await player.ask(
        groups=3,
        size=2,
        command=agent,
        retries=0,
    )

    async def six_are_shown() -> bool:
        statuses = await player.exchange.statuses()
        return 6 in [status.at_once for status in statuses.values()]

    await until(lambda: len(find_naps()) == 6)
    await until(six_are_shown)
    worker.kill()
    worker.wait()
    (folder / "go").touch()
    player.start(PYTHONPATH=path)
    groups = await player.receive(job_id, 3)
    assert sorted(group.request.number for group in groups) == [0, 1, 2]
    assert [episode.reward for episode in list_episodes(*groups)] == [1] * 6
    assert (await player.exchange.backlog(EPISODES, job_id)).entries == 0
    assert await player.exchange.claim([ROLLOUTS], job_id, count=16, wait_s=1.0) == []
    assert not find_naps()


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        ({"command": ["true"]}, "WEIR_ENVIRONMENT_COMMANDS=on"),
        ({"taskset": "harbor"}, "WEIR_ENVIRONMENT_TASKSETS"),
        ({"taskset": "lib2to3.__main__"}, "WEIR_ENVIRONMENT_TASKSETS"),
        ({"taskset": "no_such"}, "make install-environment"),
        ({"taskset": f"{TASKSET}_that_exit"}, "SystemExit"),
        ({"taskset": f"{TASKSET}_that_end"}, "ended with status 7"),
        ({"url": "http://localhost:9"}, "WEIR_ENVIRONMENT_HOSTS=localhost:9"),
        ({"url": "http://[::ffff:169.254.169.254]/latest"}, "WEIR_ENVIRONMENT_HOSTS"),
        ({"taskset": TASKSET, "settings": {"no": 1}}, "environment.settings"),
        ({"taskset": TASKSET, "settings": {"agent": {}}}, "WEIR_ENVIRONMENT_COMMANDS=on"),
    ],
)
async def test_an_environment_that_no_worker_has_fails_the_group_with_the_remedy(
    player: Player, environment: dict[str, Any], remedy: str
) -> None:
    player.start(
        WEIR_ENVIRONMENT_COMMANDS="off",
        WEIR_ENVIRONMENT_TASKSETS=f"no_such,{TASKSET},{TASKSET}_that_exit,{TASKSET}_that_end",
        WEIR_ENVIRONMENT_HOSTS="",
    )
    (failed,) = await player.receive(await player.ask(**environment), stream=FAILED)
    assert str(failed.failure).startswith("unworkable: environment.")
    assert remedy in str(failed.failure)


_PASSING = """
import importlib, pkgutil
from verifiers.v1 import tasksets
from verifiers.v1.utils.loaders import task_type, taskset_config_type
from services.environment.taskset import _TEXTS, _author_fields
for module in pkgutil.iter_modules(tasksets.__path__):
    try:
        fields = _author_fields(task_type(module.name).data_type())
    except ImportError:  # it needs packages that are not there
        continue
    print(module.name, sorted(fields | _author_fields(taskset_config_type(module.name))))
print(sorted(_TEXTS))
"""


def test_of_the_library_only_texts_pass_without_commands() -> None:
    """A field that a release adds to a taskset of its own is refused, too."""
    out = subprocess.run(
        [PYTHON, "-c", _PASSING],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    *rows, texts = out.stdout.decode().splitlines()
    assert {row.split()[0] for row in rows} >= {"harbor", "openenv"}, out.stderr
    assert all(row.endswith(" []") for row in rows)
    assert texts == "['description', 'id', 'idx', 'name', 'prompt', 'system_prompt']"


@pytest.mark.parametrize(
    ("taskset", "name", "metadata"),
    [
        (
            "harbor",
            "collect",
            {"task": {"prompt": "Hi.", "collect": [{"command": "true"}]}},
        ),
        ("harbor", "collect", {"collect": [{"command": "true"}]}),
        ("harbor", "task_dir", {"task_dir": "/etc"}),
        (TASKSET, "artifacts", {"task": {"prompt": "Hi.", "artifacts": ["/etc/passwd"]}}),
        (TASKSET, "skills", {"skills": ["/etc"]}),
        (TASKSET, "workdir", {"workdir": "/"}),
    ],
)
async def test_a_task_file_names_nothing_that_the_library_would_run_or_read(
    player: Player, taskset: str, name: str, metadata: dict[str, Any]
) -> None:
    """Not even if the operator allows a taskset that does."""
    player.start(WEIR_ENVIRONMENT_COMMANDS="off", WEIR_ENVIRONMENT_TASKSETS=f"harbor,{TASKSET}")
    task = {"prompt": "Hi.", "metadata": metadata}
    episode = await player.episode(taskset=taskset, task=task, retries=0)
    assert episode.problem == "episode_failed"
    assert f"metadata.{name} is a field of the library" in episode.words


async def test_without_commands_an_agent_that_is_a_program_is_not_started(
    player: Player,
) -> None:
    taskset = f"{TASKSET}_without_agent"
    player.start(WEIR_ENVIRONMENT_COMMANDS="off", WEIR_ENVIRONMENT_TASKSETS=taskset)
    episode = await player.episode(taskset=taskset, task=counting(), retries=0)
    assert "starts a program, which is refused" in episode.words
