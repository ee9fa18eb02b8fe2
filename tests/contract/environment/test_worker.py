"""Environment workers at the real gateway: episodes end, break, hang, and are never lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol.calls import Call, Refusal
from protocol.exchange import Exchange
from protocol.messages import ActiveJob, Episode, RolloutGroup, Turn
from protocol.streams import EPISODES, FAILED, ROLLOUTS, Stream
from protocol.tasks import read_tasks

from deploy.processes import free_ports
from tests.architecture.project import ROOT
from tests.builders import a_recipe, a_request, a_task
from tests.contract.environment.conftest import PYTHON, TASKSET, StartWorker
from tests.contract.exchange_steps import begin
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout
from tests.contract.gateway.stack import KEY, Stack

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
JOBS = (f"ftjob-{number}" for number in count())
_NAP_S = "1000.0625"  # a number that no other process has
COUNTS = "0 1 2 3 4 "  # the reply of the model
_AGENT = """
import json, os, sys, time
from urllib.request import Request, urlopen
told, said = [], []
def ask(text):
    told.append({"role": "user", "content": text})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": told}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    headers["Content-Type"] = "application/json"
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    reply = json.load(urlopen(Request(url, body, headers), timeout=60))
    told.append(reply["choices"][0]["message"])
    said.append(told[-1]["content"])
"""


def an_agent(*lines: str) -> list[str]:
    """A program of these lines, which may ``ask`` a text and find the replies in ``said``."""
    return ["python", "-c", _AGENT + "\n".join(lines)]


async def ask(
    exchange: Exchange, *, groups: int = 1, size: int = 1, task: Any = None, **environment: Any
) -> str:
    """Request groups for a new job, and return its id."""
    job_id = next(JOBS)
    attempt = await begin(exchange, job_id)
    rollout = {"group_size": max(2, size), "sampling": {"max_tokens": 8}}
    recipe = a_recipe(environment=environment, rollout=rollout)
    await exchange.activate(ActiveJob(job_id=job_id, attempt=attempt, recipe=recipe))
    for number in range(groups):
        fields = {"job_id": job_id, "number": number, "attempt": attempt, "group_size": size}
        changes = {"task": a_task(**(task or {})), "in_environment": True, "min_version": 3}
        await exchange.ask(a_request(**fields, **changes))
    return job_id


async def claim_messages(
    exchange: Exchange, stream: Stream, job_id: str, num: int = 1, within_s: float = 60
) -> list[Any]:
    messages = list[Any]()
    async with asyncio.timeout(within_s):
        while len(messages) < num:
            for delivery in await exchange.claim([stream], job_id, count=16, wait_s=0.1):
                messages.append(delivery.message())
    return messages


async def claim_group(exchange: Exchange, job_id: str) -> RolloutGroup:
    (group,) = await claim_messages(exchange, ROLLOUTS, job_id)
    return group


def list_episodes(group: RolloutGroup) -> list[Episode]:
    return [response.episode for response in group.responses if response.episode is not None]


async def play_episode(exchange: Exchange, **environment: Any) -> Episode:
    """The only episode of the only group."""
    job_id = await ask(exchange, **environment)
    (episode,) = list_episodes(await claim_group(exchange, job_id))
    return episode


def find_naps() -> list[int]:
    """Return the processes of this machine that sleep for an agent."""
    process_ids = list[int]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if _NAP_S.encode() in path.read_bytes().split(b"\0"):
                process_ids.append(int(path.parent.name))
    return process_ids


def full_behind_a_reply(call: Call) -> Refusal | None:
    full = Refusal(status=400, code="context_length_exceeded", message="the context is full")
    return full if len(call.messages or ()) > 1 else None


def test_the_tasks_that_a_taskset_brings_can_be_read(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "services.environment", "tasks", TASKSET]
    (tmp_path / "tasks.jsonl").write_bytes(subprocess.check_output(command, cwd=ROOT, timeout=120))
    (task,) = read_tasks(tmp_path / "tasks.jsonl")
    assert (task.id, task.problem) == ("first", "Count.")
    assert task.metadata["task"] == {"idx": 0, "name": "first", "prompt": "Count."}


async def test_an_agent_asks_twice_and_says_the_reward(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker
) -> None:
    start_worker(PATH="/usr/bin:/bin")
    has_programs = "import shutil; assert shutil.which('uv')"
    has_no_secret = f"assert {KEY!r} not in os.environ.values()"
    agent = an_agent(
        has_programs, has_no_secret, "ask('ab')", "ask('cd')", "print(said)", "print(0.5)"
    )
    job_id = await ask(exchange, size=2, command=agent)
    group = await claim_group(exchange, job_id)
    prompt = [ord("a"), ord("b")]
    second_prompt = [ord("c"), ord("d")]
    reply = [COUNTED + number for number in range(5)]
    assert group.prompt_ids.tolist() == prompt
    assert group.token_ids.tolist() == 2 * [*reply, *second_prompt, *reply]
    mask = 2 * [*[1] * 5, 0, 0, *[1] * 5]
    assert group.own is not None
    assert group.own.tolist() == mask
    assert group.behavior_logprobs.tolist() == [-0.5 * is_policy for is_policy in mask]
    conversation = [("user", "ab"), ("assistant", COUNTS), ("user", "cd"), ("assistant", COUNTS)]
    for response, episode in zip(group.responses, list_episodes(group), strict=True):
        spans = [(span.version, span.start, span.end) for span in response.spans]
        assert spans == [(7, 0, 5), (7, 5, 12)]
        assert response.text == f"{COUNTS}\n\n{COUNTS}"
        assert (episode.reward, episode.turns, episode.problem) == (0.5, 2, "")
        assert episode.conversation == tuple(Turn(role=r, content=c) for r, c in conversation)
        assert set(episode.seconds) == {"model", "environment"}
    terms = [call.terms for call in rollout.calls if call.terms is not None]
    assert {(term.job_id, term.min_version, term.sampling.max_tokens) for term in terms} == {
        (job_id, 3, 8)
    }
    assert len({term.seed for term in terms}) == 2


async def test_of_an_episode_with_branches_the_longest_is_trained_and_an_event_says_so(
    exchange: Exchange, start_worker: StartWorker
) -> None:
    start_worker()
    agent = an_agent("ask('a')", "told.clear()", "ask('b')", "ask('c')", "print(1)")
    job_id = await ask(exchange, groups=2, command=agent)
    for group in await claim_messages(exchange, ROLLOUTS, job_id, 2):
        assert (group.prompt_ids.tolist(), group.policy_lengths.tolist()) == ([ord("b")], [10])
    event_ids = [event.id for _, event in await exchange.events(job_id)]
    assert event_ids.count("branches:1") == 1


@pytest.mark.parametrize(
    ("last_lines", "problem", "words"),
    [
        (["raise KeyError('no row')"], "episode_failed", "no row"),
        (["sys.exit(3)"], "episode_failed", "exit status 3"),
        (["print('{\"reward\": null}')"], "no_reward", "gave no reward"),
        (["print('well done')"], "no_reward", "well done"),
        (["print('NaN')"], "no_reward", "NaN"),
    ],
)
async def test_what_breaks_is_tried_again_and_then_has_a_problem_and_no_tokens(
    exchange: Exchange,
    rollout: FakeRollout,
    start_worker: StartWorker,
    last_lines: Sequence[str],
    problem: str,
    words: str,
) -> None:
    start_worker()
    command = an_agent("ask('a')", *last_lines)
    group = await claim_group(exchange, await ask(exchange, command=command, retries=2))
    (episode,) = list_episodes(group)
    assert (episode.problem, episode.reward, episode.turns) == (problem, None, 1)
    assert words in episode.words
    assert episode.conversation[0] == Turn(role="user", content="a")
    assert (group.lengths.tolist(), group.responses[0].text) == ([0], COUNTS)
    assert len(rollout.calls) == 3


async def test_an_episode_that_ends_at_a_later_try_is_as_good(
    exchange: Exchange, start_worker: StartWorker
) -> None:
    start_worker()
    once = "os.mkdir('/tmp/tried') if not os.path.exists('/tmp/tried') else print(1)"
    assert (await play_episode(exchange, command=an_agent("ask('a')", once))).reward == 1


async def test_a_program_has_ended_when_what_it_leaves_running_holds_its_output_open(
    exchange: Exchange, start_worker: StartWorker
) -> None:
    start_worker()
    agent = an_agent("ask('a')", "os.system('sleep 1000 &')", "print(1)")
    assert (await play_episode(exchange, command=agent, retries=0)).reward == 1


async def test_a_hung_episode_ends_at_its_deadline_and_the_others_of_its_group_count(
    exchange: Exchange, start_worker: StartWorker, worker_port: str
) -> None:
    """Its program has started one of its own, which ends with it."""
    start_worker()
    agent = an_agent(
        "is_first = not os.path.exists('/tmp/first')",
        "os.makedirs('/tmp/first', exist_ok=True)",
        "ask('a')",
        f"is_first and os.system('sleep {_NAP_S}')",
        "print(1)",
    )
    job_id = await ask(exchange, size=2, command=agent, episode_timeout_s=10, concurrency=1)
    episodes = list_episodes(await claim_group(exchange, job_id))
    assert [(episode.problem, episode.reward) for episode in episodes] == [
        ("episode_timeout", None),
        ("", 1),
    ]
    metrics = httpx.get(f"http://127.0.0.1:{worker_port}/metrics").text
    for outcome, number in (("episode_timeout", 1), ("ended", 1), ("no_reward", 0)):
        assert f'weir_episodes_total{{outcome="{outcome}"}} {number}.0' in metrics
    async with asyncio.timeout(60):
        while find_naps():
            await asyncio.sleep(0.05)


async def test_a_taskset_is_played_by_its_own_agent(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker
) -> None:
    start_worker()
    task = {"metadata": {"task": {"prompt": "Count.", "answer": COUNTS.strip()}}}
    job_id = await ask(exchange, taskset=TASKSET, task=task, max_turns=2)
    group = await claim_group(exchange, job_id)
    (episode,) = list_episodes(group)
    assert (episode.reward, episode.turns) == (1, 2)
    assert "".join(map(chr, group.prompt_ids)) == "Count."
    assert group.policy_lengths.tolist() == [10]
    for ends, problem in (("raises", "no such row"), ("unpaid", "gave no reward")):
        task = {"metadata": {"task": {"prompt": "Count.", "ends": ends}}}
        assert problem in (await play_episode(exchange, taskset=TASKSET, task=task)).words


async def test_a_taskset_keeps_no_connection_of_an_episode_that_has_ended(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker
) -> None:
    start_worker()
    settings = {"taskset": TASKSET, "max_turns": 2, "concurrency": 1}
    task = {"metadata": {"task": {"prompt": "Count.", "ends": "alone"}}}
    job_id = await ask(exchange, groups=3, task=task, **settings)
    groups = await claim_messages(exchange, ROLLOUTS, job_id, 3)
    assert [episode.reward for group in groups for episode in list_episodes(group)] == [1, 1, 1]


async def test_a_taskset_that_a_network_keeps_from_loading_is_tried_again(
    exchange: Exchange, start_worker: StartWorker, tmp_path: Path
) -> None:
    folder = tmp_path / "tasksets"
    folder.mkdir()
    os.mkfifo(folder / "hub")
    (folder / "passing.py").write_text(
        "import pathlib\n"
        "if pathlib.Path(__file__).with_name('hub').read_text() == 'away':\n"
        "    raise ConnectionError('the hub is away')\n"
        f"from {TASKSET} import Tasks, Twice\n"
        "__all__ = ['Tasks', 'Twice']\n"
    )
    path = f"{ROOT / 'proto'}:{ROOT}:{folder}"
    start_worker(PYTHONPATH=path, WEIR_ENVIRONMENT_TASKSETS="passing")
    task = {"metadata": {"task": {"prompt": "Count.", "answer": COUNTS.strip()}}}
    job_id = await ask(exchange, taskset="passing", task=task)
    for state in ("away", "here"):
        await asyncio.to_thread((folder / "hub").write_text, state)
    (episode,) = list_episodes(await claim_group(exchange, job_id))
    assert episode.reward == 1


async def test_64_episodes_wait_at_the_same_time_in_one_thread(
    exchange: Exchange, start_worker: StartWorker
) -> None:
    """Each waits until it is one of 64; a 65th would break."""
    worker = start_worker()
    task = {"prompt": "Count.", "metadata": {"crowd": 64}}
    groups_and_task = {"groups": 16, "size": 8, "task": task}
    settings = {"concurrency": 64, "retries": 0, "episode_timeout_s": 120}
    job_id = await ask(exchange, taskset=TASKSET, **groups_and_task, **settings)
    groups = await claim_messages(exchange, ROLLOUTS, job_id, 16, within_s=240)
    assert {episode.problem for group in groups for episode in list_episodes(group)} == {""}
    status = Path(f"/proc/{worker.pid}/status").read_text()
    assert int(status.partition("Threads:")[2].split()[0]) < 32


@pytest.fixture
def game(stack: Stack) -> Iterator[str]:
    """The address of an OpenEnv server with a place for one."""
    port = next(free_ports())
    command = [sys.executable, str(Path(__file__).with_name("openenv_server.py")), f"{port}", "1"]
    with subprocess.Popen(command) as process:
        yield f"http://127.0.0.1:{port}"
        process.kill()


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
    exchange: Exchange,
    start_worker: StartWorker,
    game: str,
    ends: str,
    reward: float | None,
    problem: str,
    turns: int,
) -> None:
    """The two of a group wait for the server's only place."""
    start_worker()
    task = {"prompt": "Play.", "metadata": {"seed": 7, "ends": ends}}
    settings = {"settings": {"level": 2}, "max_turns": 3, "retries": 0}
    job_id = await ask(exchange, url=game, task=task, size=2, **settings)
    for episode in list_episodes(await claim_group(exchange, job_id)):
        outcome = (episode.reward, episode.problem, episode.turns)
        assert outcome == (reward, problem, turns), episode.words
        assert ends != "gone" or "OpenEnv server" in episode.words
        user_turns = [turn.content for turn in episode.conversation if turn.role == "user"]
        assert user_turns == ["Play.\n\nseed 7, level 2", *["go on"] * (turns - 1)]


@pytest.mark.parametrize(("status", "code"), [(500, "engine_error"), (503, "not_taken")])
async def test_a_group_is_given_back_while_the_model_fails(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker, status: Any, code: str
) -> None:
    start_worker()
    broken = Refusal(status=status, code=code, message="the engine fails")
    rollout.refuse = lambda call: broken if len(rollout.calls) < 3 else None
    agent = an_agent("ask('a')", "print(1)")
    assert (await play_episode(exchange, command=agent, retries=0)).reward == 1
    assert len(rollout.calls) == 3


@pytest.mark.parametrize(
    ("last_lines", "reward", "problem"),
    [
        (["ask('b')", "print(1)"], 0, ""),
        (["try: ask('b')", "except OSError: print(0.5)"], 0.5, ""),
        (["try: ask('b')", "except OSError: told.clear()", "ask('c')", "1 / 0"], None, "failed"),
    ],
)
async def test_a_full_context_is_the_policys_own_fault_unless_an_agent_goes_on(
    exchange: Exchange,
    rollout: FakeRollout,
    start_worker: StartWorker,
    last_lines: Sequence[str],
    reward: float | None,
    problem: str,
) -> None:
    start_worker()
    rollout.refuse = full_behind_a_reply
    agent = an_agent("ask('a')", *last_lines)
    group = await claim_group(exchange, await ask(exchange, command=agent, retries=0))
    (episode,) = list_episodes(group)
    assert (episode.reward, episode.problem.removeprefix("episode_")) == (reward, problem)
    assert (group.responses[0].finish_reason == "length") == (not problem)


async def test_tasksets_and_games_end_with_what_they_have_where_the_context_is_full(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker, game: str
) -> None:
    start_worker()
    rollout.refuse = full_behind_a_reply
    task = {"metadata": {"task": {"prompt": "Count."}}}
    game_task = {"prompt": "Play.", "metadata": {"seed": 7, "ends": "never"}}
    at_game = {"url": game, "task": game_task, "settings": {"level": 2}}
    for reward, environment in {0.0: {"taskset": TASKSET, "task": task}, 0.25: at_game}.items():
        group = await claim_group(exchange, await ask(exchange, **environment))
        assert [episode.reward for episode in list_episodes(group)] == [reward]
        assert group.responses[0].finish_reason == "length"


async def test_an_episode_whose_agent_repeats_a_failed_call_counts(
    exchange: Exchange, rollout: FakeRollout, start_worker: StartWorker
) -> None:
    start_worker()
    broken = Refusal(status=503, code="not_taken", message="no rollout has room")
    rollout.refuse = lambda call: broken if len(rollout.calls) < 2 else None
    repeats = ["try: ask('a')", "except OSError:", "    told.clear()", "    ask('a')"]
    assert (await play_episode(exchange, command=an_agent(*repeats, "print(1)"))).reward == 1
    assert len(rollout.calls) == 2


async def test_a_worker_that_is_killed_amid_episodes_is_replaced_and_nothing_comes_twice(
    exchange: Exchange, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Programs see which files there are when their process begins."""
    folder = tmp_path / "seen"
    folder.mkdir()
    path = f"{ROOT / 'proto'}:{ROOT}:{folder}"
    worker = start_worker(PYTHONPATH=path)
    nap = f"os.path.exists('{folder}/go') or os.system('sleep {_NAP_S}')"
    agent = an_agent("ask('a')", nap, "print(1)")
    job_id = await ask(exchange, groups=3, size=2, command=agent, retries=0)
    async with asyncio.timeout(60):
        while len(find_naps()) < 6:
            await asyncio.sleep(0.05)
        while 6 not in [status.at_once for status in (await exchange.statuses()).values()]:
            await asyncio.sleep(0.05)
    worker.kill()
    worker.wait()
    (folder / "go").touch()
    start_worker(PYTHONPATH=path)
    groups = await claim_messages(exchange, ROLLOUTS, job_id, 3)
    assert sorted(group.request.number for group in groups) == [0, 1, 2]
    assert all(episode.reward == 1 for group in groups for episode in list_episodes(group))
    assert (await exchange.backlog(EPISODES, job_id)).entries == 0
    assert await exchange.claim([ROLLOUTS], job_id, count=16, wait_s=1.0) == []
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
    exchange: Exchange, start_worker: StartWorker, environment: dict[str, Any], remedy: str
) -> None:
    tasksets = ",".join(("no_such", TASKSET, f"{TASKSET}_that_exit", f"{TASKSET}_that_end"))
    start_worker(
        WEIR_ENVIRONMENT_COMMANDS="off",
        WEIR_ENVIRONMENT_TASKSETS=tasksets,
        WEIR_ENVIRONMENT_HOSTS="",
    )
    (failed,) = await claim_messages(exchange, FAILED, await ask(exchange, **environment))
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
    out = subprocess.run([PYTHON, "-c", _PASSING], cwd=ROOT, capture_output=True, timeout=120)
    *rows, texts = out.stdout.decode().splitlines()
    assert {row.split()[0] for row in rows} >= {"harbor", "openenv"}, out.stderr
    assert all(row.endswith(" []") for row in rows)
    assert texts == "['description', 'id', 'idx', 'name', 'prompt', 'system_prompt']"


@pytest.mark.parametrize(
    "metadata",
    [
        {"task": {"prompt": "Hi.", "collect": [{"command": "true"}]}},
        {"collect": [{"command": "true"}]},
        {"task_dir": "/etc"},
        {"task": {"prompt": "Hi.", "artifacts": ["/etc/passwd"]}},
        {"skills": ["/etc"]},
        {"workdir": "/"},
    ],
)
async def test_a_task_file_names_nothing_that_the_library_would_run_or_read(
    exchange: Exchange, start_worker: StartWorker, metadata: dict[str, Any]
) -> None:
    """Not even if the operator allows a taskset that does."""
    start_worker(WEIR_ENVIRONMENT_COMMANDS="off", WEIR_ENVIRONMENT_TASKSETS=f"harbor,{TASKSET}")
    fields = metadata.get("task", metadata)
    (name,) = fields.keys() - {"prompt"}
    of_harbor = name in {"collect", "task_dir"}
    taskset = "harbor" if of_harbor else TASKSET
    task = {"prompt": "Hi.", "metadata": metadata}
    episode = await play_episode(exchange, taskset=taskset, task=task, retries=0)
    assert episode.problem == "episode_failed"
    assert f"metadata.{name} is a field of the library" in episode.words


async def test_without_commands_an_agent_that_is_a_program_is_not_started(
    exchange: Exchange, start_worker: StartWorker
) -> None:
    taskset = f"{TASKSET}_without_agent"
    start_worker(WEIR_ENVIRONMENT_COMMANDS="off", WEIR_ENVIRONMENT_TASKSETS=taskset)
    task = {"metadata": {"task": {"prompt": "Count."}}}
    episode = await play_episode(exchange, taskset=taskset, task=task, retries=0)
    assert "starts a program, which is refused" in episode.words
