"""A grader claims the jobs that it can grade, names obstacles, and answers trials."""

import asyncio
import subprocess
import sys
import tomllib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol.exchange import connect
from protocol.messages import ActiveJob, Graded, JobEvent, Score, Trial, TrialResult, Ungradable
from protocol.rewards import Reward

from services.chassis.faults import UnsupportedEntry
from services.chassis.pool import Pool
from services.chassis.service import Service
from services.grader import worker
from services.grader.grading import grade_response
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.tools import Settings, Tools
from services.grader.verifiers import VERIFIERS
from services.grader.worker import MAX_TRIALS, answer_trials_forever, run_trial
from tests.builders import a_recipe, a_task
from tests.contract.valkey_server import Server
from tests.unit.grader.judge_server import MODEL, ScriptedServer, judge_settings, says, until
from tests.unit.grader.pools import InlinePool

pytestmark = pytest.mark.anyio

SCRIPT = """
import sys
sys.path[:0] = ["proto", "."]
import services.data.__main__, services.grader.offline.__main__, services.grader.worker
loaded = {"sympy", "math_verify", "datasets", "pyarrow", "pandas"} & set(sys.modules)
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""


def test_libraries_of_workers_and_imports_are_not_loaded() -> None:
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def parse_reward(settings: str) -> Reward:
    return Reward.model_validate(tomllib.loads(settings))


BY_RULE = parse_reward("process = 'equation_steps'")
BY_JUDGE = parse_reward("process = ['equation_steps', 'model_judge']")
BY_ORACLE = parse_reward("outcome = 'my_lab.oracle'")
BY_GPT = parse_reward("outcome = { verifier = 'model_judge', model = 'gpt-5' }")
BY_CODE = parse_reward("outcome = { verifier = 'python', source = 'x' }")
POOL = Pool(1)  # never opened
NO_JUDGE = Tools(POOL)
UP_SOON = Judge(JudgeSettings("http://127.0.0.1:1/v1", "gpt-oss-20b"))
JUDGE = Tools(POOL, UP_SOON)
STARTING = "the judge is not up: starting"


@pytest.mark.parametrize(
    ("reward", "tools", "words"),
    [
        (BY_RULE, NO_JUDGE, None),
        (BY_RULE, JUDGE, None),
        (BY_JUDGE, NO_JUDGE, ["WEIR_JUDGE_URL"]),
        (BY_JUDGE, JUDGE, [STARTING]),
        (BY_ORACLE, NO_JUDGE, ["'my_lab.oracle'", "WEIR_GRADER_EXTENSIONS"]),
        (BY_GPT, JUDGE, ["no model 'gpt-5', but 'judge', 'gpt-oss-20b'", "WEIR_JUDGES"]),
        (BY_GPT, Tools(POOL, other_judges={"gpt-5": UP_SOON}), [STARTING]),
        (BY_CODE, JUDGE, ["WEIR_GRADER_PYTHON=on"]),
        (BY_CODE, Tools(POOL, sandbox=POOL), None),
    ],
)
def test_an_obstacle_is_named_with_its_remedy(
    reward: Reward, tools: Tools, words: list[str] | None
) -> None:
    message = worker.find_obstacle(reward, tools)
    assert (message is None) is (words is None)
    assert all(word in (message or "") for word in words or [])


def a_job(reward: Reward) -> ActiveJob:
    recipe = a_recipe(reward=reward.model_dump(), algorithm={"advantage": "grpo"})
    return ActiveJob(job_id="job", attempt=1, recipe=recipe)


@pytest.mark.parametrize("reward", [BY_JUDGE, BY_ORACLE])
def test_a_job_that_lacks_an_extension_or_a_judge_is_handed_on_after_a_while(
    reward: Reward,
) -> None:
    waiting, patient = (worker.Admission(NO_JUDGE, timeout_s=timeout_s) for timeout_s in (60, 0))
    assert not waiting.is_open(a_job(reward))
    assert patient.is_open(a_job(reward))
    with pytest.raises(UnsupportedEntry, match=r"where (they|the graders) run"):
        patient.check(a_job(reward))
    patient.check(a_job(BY_RULE))
    assert waiting.is_open(a_job(BY_RULE))


def test_a_judge_that_may_come_up_delays_a_job() -> None:
    patient = worker.Admission(JUDGE, timeout_s=0)
    assert not patient.is_open(a_job(BY_JUDGE))
    # A job that was claimed while the judge was up is not refused.
    patient.check(a_job(BY_JUDGE))


async def test_a_job_hears_that_it_waits_and_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "POLL_S", 0)
    events: list[str] = []
    is_ready: list[bool] = []

    def find_obstacle(*_: object) -> str | None:
        return "the judge is not up" if len(is_ready) < 3 else None

    monkeypatch.setattr(worker, "find_obstacle", find_obstacle)

    async def find_active() -> ActiveJob:
        return a_job(BY_RULE)

    async def record_event(event: JobEvent) -> None:
        events.append(f"{event.id} {event.message}")

    exchange = SimpleNamespace(me="me", active=find_active, record_event=record_event)
    readiness = SimpleNamespace(set=lambda ready, why: is_ready.append(ready))
    service: Any = SimpleNamespace(exchange=exchange, readiness=readiness)
    reporting = asyncio.create_task(worker.report_forever(service, NO_JUDGE))
    await until(lambda: len(is_ready) > 5)
    reporting.cancel()
    waits, goes_on = events
    assert waits.startswith("gate:closed:me:0 ")
    assert "the judge is not up" in waits
    assert goes_on.startswith("gate:open:me:1 ")
    assert is_ready[0] < is_ready[-1]


RIGHT = r"It is \boxed{2}."
MATHS = {"outcome": "math_answer"}


def a_trial(reward: dict[str, Any] = MATHS, text: str = RIGHT, number: int = 0) -> Trial:
    checks = Reward.model_validate(reward)
    return Trial(id=f"trial-{number}", reward=checks, task=a_task(), text=text)


async def test_a_trial_names_the_missing_judge(tools: Tools) -> None:
    result = await run_trial(a_trial({"outcome": "model_judge"}), tools)
    assert result.outcome is None
    assert "WEIR_JUDGE_URL" in result.missing


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (r"\frac{1}{2}", Graded(value=1)),
        ("g(2)", Ungradable(reason="gold_not_parsable")),
        (" ", Ungradable(reason="gold_not_parsable")),
    ],
)
async def test_a_trial_without_a_text_says_whether_the_answer_can_be_read(
    tools: Tools, answer: str, score: Score
) -> None:
    reward = Reward.model_validate(MATHS)
    trial = Trial(id="trial", reward=reward, task=a_task(answer=answer), text=None)
    assert (await run_trial(trial, tools)).outcome == score


async def test_a_label_is_picked_by_the_model_of_that_name_and_its_tokens_are_told(
    tools: Tools, server: ScriptedServer
) -> None:
    server.script = [says('{"analysis": "so", "label": "fair"}')]
    check = tomllib.loads("""
        verifier = "label_model"
        model = "strict"
        input = [{ role = "user", content = "{{item.answer}}? {{sample.output_text}}" }]
        labels = ["good", "fair", "bad"]
        passing_labels = ["good", "fair"]
    """)
    async with Judge(judge_settings(server)) as judge:
        judge_tools = Tools(tools.pool, other_judges={"strict": judge})

        async def try_label(limit_s: float = 60, **changes: Any) -> TrialResult:
            async with asyncio.timeout(2 * limit_s + 20):
                return await run_trial(a_trial({"outcome": check | changes}), judge_tools, limit_s)

        await until(lambda: judge.is_up)
        passes = await try_label()
        fails = await try_label(passing_labels=["bad"])
        await server.go_away()
        await try_label(limit_s=0.1, seed=1)
        await until(lambda: not judge.is_up)
        down = await try_label()
    assert isinstance(passes.outcome, Graded)
    assert isinstance(fails.outcome, Graded)
    assert (passes.outcome.value, fails.outcome.value) == (1, 0)
    assert passes.outcome.breakdown == {"good": 0, "fair": 1, "bad": 0, "samples": 1}
    assert passes.tokens == {MODEL: 120}
    assert '"label": one of "good", "fair", "bad"' in server.requests[0]["messages"][0]["content"]
    assert down.outcome == Ungradable(reason="judge_failed")
    assert "cannot be reached" in down.details["judge_failed"]


async def test_every_judge_of_the_deployment_watches_over_itself(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = judge_settings(server, url="http://127.0.0.1:1/v1")
    judges = {"strict": Judge(judge_settings(server)), "away": Judge(away)}
    monkeypatch.setattr(worker, "Pool", InlinePool)
    async with worker.open_tools(Settings(groups_in_flight=1, workers=1), judges) as tools:
        await until(lambda: judges["strict"].is_up and "reached" in judges["away"].why_down)
        assert list(tools.other_judges) == ["strict", "away"]


class BlockingVerifier:
    """A verifier that grades nothing until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(VERIFIERS, "my_lab.held", self)
        self.under_way = 0
        self.let_go = asyncio.Event()

    async def __call__(self, *_: object) -> Score:
        self.under_way += 1
        await self.let_go.wait()
        return Graded(value=1)


async def test_a_trial_ends_in_time_and_has_one_check_under_way_at_a_time(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking = BlockingVerifier(monkeypatch)
    checks = [{"verifier": "my_lab.held", "name": f"c{number}"} for number in range(5)]
    async with asyncio.timeout(30):
        result = await run_trial(a_trial({"outcome": checks}), tools, timeout_s=0.01)
    assert (result.outcome, blocking.under_way) == (Ungradable(reason="not_in_time"), 1)
    blocking.let_go.set()
    result = await run_trial(a_trial({"outcome": checks}), tools)
    assert list(result.scores.values()) == [Graded(value=1)] * 5


@pytest.mark.redis
async def test_trials_that_hang_hold_up_neither_a_job_nor_more_trials_than_a_few(
    tools: Tools, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking = BlockingVerifier(monkeypatch)
    checks = {"outcome": "my_lab.held"}
    trials = [a_trial(checks, number=number) for number in range(MAX_TRIALS + 1)]
    async with connect(valkey.url, me="test") as exchange:
        service = cast(Service, SimpleNamespace(exchange=exchange))
        trying = asyncio.create_task(answer_trials_forever(service, tools))
        for trial in trials:
            assert await exchange.ask_trial(trial, limit=10)
        await until(lambda: blocking.under_way == MAX_TRIALS)
        with valkey.client() as client:
            keys = cast(list[bytes], client.keys("weir:trial*"))
            assert len(keys) == 1
            assert all(cast(int, client.ttl(key)) > 0 for key in keys)
        grade = await grade_response(Reward(), a_task(), RIGHT, tools)
        assert grade.accuracy == 1
        assert await exchange.withdraw_trial(trials[-1])
        assert not await exchange.withdraw_trial(trials[0])
        blocking.let_go.set()
        for trial in trials[:-1]:
            result = await exchange.trial_result(trial.id, wait_s=60)
            assert result is not None
            assert result.outcome == Graded(value=1)
        assert await exchange.ask_trial(trials[-1], limit=10)
        assert await exchange.trial_result(trials[-1].id, wait_s=60) is not None
        trying.cancel()
