"""``weir data integers``: by rule, by a scripted model, and on the task files that there are."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol.messages import Graded
from protocol.tasks import read_tasks

from services.grader.data import integers
from services.grader.data.__main__ import main
from services.grader.data.integers import How, Outcome, rewrite_all
from services.grader.data.lines import read_lines
from services.grader.data.rewriter import NoProposal, Rewriter, RewriterError, read_proposal
from services.grader.data.target import RefusedError, file_to_write, replacing
from services.grader.tools import Tools
from services.grader.verifiers import math_answer

NOBODY = "http://127.0.0.1:9/v1"
CUBE_ROOT = {"id": "root", "prompt": "How long is the edge?", "answer": r"3\sqrt[3]{4}"}
RIGHT = {"form": "k*m^(1/3)", "values": {"k": 3, "m": 4}, "ask": "k+m", "answer": 7}


@dataclass
class Files:
    """A task file to read, and one to write."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "in.jsonl"

    @property
    def target(self) -> Path:
        return self.folder / "out.jsonl"

    def rewrite(self, *tasks: dict[str, Any]) -> int:
        self.source.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
        return main(["integers", str(self.source), str(self.target)])

    @property
    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.target.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    for name in ("URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"WEIR_REWRITER_{name}", raising=False)
    return Files(tmp_path)


def a_task(answer: str, **changes: Any) -> dict[str, Any]:
    return {"id": "one", "prompt": "How long is it?", "answer": answer, **changes}


def test_each_answer_goes_its_way(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ["42", r"\frac{14}{3}", r"11-2\sqrt{6}", r"\text{East}", r"10,\!080", "(1,2)"]
    tasks = [a_task(answer, id=f"task-{n}") for n, answer in enumerate(answers)]
    tasks[1] |= {"metadata": {"level": 5, "ü": ["\ud800"]}, "solution": "See?"}
    assert files.rewrite(*tasks) == 0
    assert [(task["id"], task["answer"]) for task in files.written] == [
        ("task-0", "42"),
        ("task-1", "17"),
        ("task-2", "15"),
        ("task-4", "10080"),
    ]
    assert capsys.readouterr().err.splitlines() == [
        "line 4: 'task-3': the answer is text or the letter of a choice",
        "line 6: 'task-5': the answer is a list or a tuple",
        "2 kept as they are, 2 rewritten by rule, 0 by model, 2 left out",
    ]
    assert_only_prompt_and_answer_differ(files.written[1], tasks[1])
    assert [task.answer for task in read_tasks(files.target)] == ["42", "17", "15", "10080"]


def assert_only_prompt_and_answer_differ(task: dict[str, Any], old: dict[str, Any]) -> None:
    assert list(task) == list(old)
    assert {**task, "prompt": "", "answer": ""} == {**old, "prompt": "", "answer": ""}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "integer", "words"),
    [
        (r"1\frac{4}{5}", "14", r"\frac{m}{n}"),
        ("1.25", "9", r"\frac{m}{n}"),
        (r"-\frac{35}{9}", "-26", r"$m$ may be negative"),
        (r"\frac{3\sqrt{3}}{4}", "10", r"\frac{k\sqrt{m}}{n}"),
        (r"\frac{\sqrt{12}}{6}", "7", r"\gcd(k, n) = 1"),
        (r"-\frac{\pi}{6}", "5", r"\frac{k\pi}{n}"),
        (r"18+2\pi", "20", r"p+q\pi"),
        (r"\frac{1+\sqrt{5}}{2}", "9", r"\frac{p+q\sqrt{r}}{s}"),
        (r"90^\circ", "90", "in degrees"),
        (r"5.25 \text{ cents}", "25", ", in cents,"),
        (r"15\mbox{ cm}^2", "15", "in cm²"),
        (r"12.5\%", "27", "in percent"),
    ],
)
async def test_a_number_is_asked_for_by_its_integers(
    answer: str, integer: str, words: str, files: Files, tools: Tools
) -> None:
    [outcome] = await rewrite(files, [a_task(answer)], tools)
    assert outcome.how is How.RULE, outcome.reason
    assert outcome.fields["answer"] == integer
    problem, _, sentence = outcome.fields["prompt"].partition("\n\n")
    assert problem == "How long is it?"
    assert words in sentence


@pytest.mark.anyio
async def test_a_rounded_decimal_is_left_out_unless_the_problem_asks_for_it(
    files: Files, tools: Tools
) -> None:
    rounding = a_task("0.67", prompt="What part is red? Round to the nearest hundredth.")
    left_out, rule = await rewrite(files, [a_task("0.67"), {**rounding, "id": "two"}], tools)
    assert left_out.reason == "0.67 may be rounded, and the problem asks for no rounding"
    assert rule.fields["answer"] == "167"


@dataclass(frozen=True)
class Surd:
    """``(p + q·√r)/s``, or ``(p + q·π)/s`` without ``r``; not reduced."""

    p: int
    q: int
    r: int | None
    s: int

    @property
    def latex(self) -> str:
        factor = r"\pi" if self.r is None else rf"\sqrt{{{self.r}}}"
        return rf"\frac{{{self.p}{self.q:+}{factor}}}{{{self.s}}}"

    @property
    def sum_of_integers(self) -> int:
        """What the reduced form asks for, worked out without the code under test."""
        squares = [n for n in range(1, 10) if (self.r or 1) % n**2 == 0]
        p, q, s = self.p, self.q * squares[-1], self.s
        common = gcd(p, q, s)
        root = 0 if self.r is None else self.r // squares[-1] ** 2
        return (p + q) // common + root + (s // common if s > common else 0)


SURDS = st.builds(
    Surd,
    p=st.integers(-99, 99),
    q=st.integers(-99, 99).filter(bool),
    r=st.sampled_from([None, 2, 3, 8, 12, 45, 97]),
    s=st.integers(1, 60),
)


@pytest.mark.anyio
@settings(
    deadline=None, max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(surds=st.lists(SURDS, min_size=30, max_size=30))
async def test_the_grader_agrees_with_every_rewritten_number(
    files: Files, tools: Tools, surds: list[Surd]
) -> None:
    tasks = [a_task(surd.latex, id=str(number)) for number, surd in enumerate(surds)]
    outcomes = await rewrite(files, tasks, tools)
    assert [int(o.fields["answer"]) for o in outcomes] == [s.sum_of_integers for s in surds]


@pytest.mark.anyio
async def test_the_sentence_goes_to_the_last_message_of_the_user(
    files: Files, tools: Tools
) -> None:
    turns = [("system", "Be brief."), ("user", "Half of 1?"), ("assistant", "<think>")]
    messages = [{"role": role, "content": content} for role, content in turns]
    task = {"id": "one", "messages": messages, "answer": "0.5"}
    [outcome] = await rewrite(files, [task], tools)
    contents = [turn["content"] for turn in outcome.fields["messages"]]
    assert contents[0] == "Be brief."
    assert contents[1].startswith("Half of 1?\n\nWrite the answer as $")
    assert contents[2] == "<think>"


@pytest.mark.anyio
async def test_without_a_message_of_the_user_a_task_is_left_out(files: Files, tools: Tools) -> None:
    messages = [{"role": "system", "content": "Half of 1?"}]
    task = {"id": "x", "messages": messages, "answer": "0.5"}
    [outcome] = await rewrite(files, [task], tools)
    assert outcome.reason.startswith("no message of the user")


def test_the_file_that_is_read_is_not_overwritten(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.source.write_text(json.dumps(a_task("1/2")))
    files.target.symlink_to(files.source)
    for target in (files.source, files.target):
        assert main(["integers", str(files.source), str(target)]) == 2
        assert "is the file to read" in capsys.readouterr().err
    assert json.loads(files.source.read_text()) == a_task("1/2")


@pytest.mark.parametrize("task", [a_task("x+1"), {"id": "broken"}])
def test_where_nothing_can_be_written_the_old_file_stays(
    task: dict[str, Any], files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.target.write_text("old")
    assert files.rewrite(task) == 2
    assert files.target.read_text() == "old"
    assert sorted(path.name for path in files.folder.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert "line 1: " in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["no/such", "/proc/self"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    folder: str, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "none")  # the work itself would stop at this
    files.source.write_text(json.dumps(a_task("1/2")))
    target = files.folder / folder / "out.jsonl"
    assert main(["integers", str(files.source), str(target)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_pipe_is_refused_and_stays_a_pipe(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.source.touch()
    os.mkfifo(files.folder / "pipe")
    files.target.symlink_to("pipe")
    for target in (files.folder / "pipe", files.target, Path("/dev/null"), files.folder):
        with pytest.raises(RefusedError, match="no regular file"):
            file_to_write(target, files.source)
    assert files.rewrite(a_task("1/2")) == 2
    assert "is no regular file" in capsys.readouterr().err
    assert files.target.is_symlink()
    assert files.target.is_fifo()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symlink_stays_and_its_file_is_written(is_there: bool, files: Files) -> None:
    (files.folder / "far").mkdir()
    real = files.folder / "far" / "real.jsonl"
    files.target.symlink_to("far/real.jsonl")
    files.source.touch()
    if is_there:
        real.write_text("old")
    with replacing(file_to_write(files.target, files.source)) as file:
        file.write("new")
        assert not is_there or real.read_text() == "old"
    assert files.target.is_symlink()
    assert real.read_text() == "new"
    assert list(real.parent.iterdir()) == [real]


def test_a_symlink_to_itself_is_refused(files: Files) -> None:
    files.target.symlink_to(files.target.name)
    with pytest.raises(RefusedError, match="no regular file"):
        file_to_write(files.target, files.source)


Reply = tuple[int, str]


def completion(content: object) -> Reply:
    text = content if isinstance(content, str) else f"So it is.\n{json.dumps(content)}"
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


@dataclass
class Endpoint:
    """A chat completions endpoint that answers by a script; the last reply is repeated."""

    url: str
    script: list[Reply] = field(default_factory=list)
    delay_s: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @property
    def rewriter(self) -> Rewriter:
        return Rewriter(self.url, "rewriter", pauses_s=(0, 0))

    def answer(self, path: str, key: str | None, body: dict[str, Any]) -> Reply:
        assert path == "/v1/chat/completions"
        self.asked.append(body)
        self.keys.append(key)
        time.sleep(self.delay_s)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@pytest.fixture
def endpoint(files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, text = served.answer(self.path, self.headers["Authorization"], body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda request, client_address: None  # a client that gave up
        served = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WEIR_REWRITER_URL", served.url)
        monkeypatch.setenv("WEIR_REWRITER_MODEL", "rewriter")
        yield served
        server.shutdown()


@pytest.mark.anyio
async def test_a_model_s_form_is_examined_and_written(
    files: Files, endpoint: Endpoint, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_REWRITER_API_KEY", "secret")
    endpoint.script = [completion(RIGHT)]
    [outcome] = await rewrite(files, [CUBE_ROOT], tools, Rewriter.from_environment())
    assert outcome.how is How.MODEL
    task = outcome.fields
    assert task["answer"] == "7"
    assert r"as $k \cdot m^{\frac{1}{3}}$, where" in task["prompt"]
    assert "$m$ is not divisible by the cube of any prime" in task["prompt"]
    assert task["prompt"].endswith("give the integer $k+m$ as the final answer instead.")
    assert endpoint.keys == ["Bearer secret"]
    assert endpoint.asked[0]["model"] == "rewriter"
    assert CUBE_ROOT["prompt"] in endpoint.asked[0]["messages"][-1]["content"]


@pytest.mark.anyio
async def test_what_a_rule_can_do_is_not_asked_for(
    files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [(401, "never")]
    tasks = [a_task("1/2"), a_task("7"), a_task("0.67"), a_task("(1,2)")]
    await rewrite(
        files, [{**t, "id": str(n)} for n, t in enumerate(tasks)], tools, endpoint.rewriter
    )
    assert endpoint.asked == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("proposal", "why"),
    [
        ({**RIGHT, "values": {"k": 3, "m": 5}, "answer": 8}, "is not the answer"),
        ({**RIGHT, "answer": 8}, "k+m is not 8"),
        ({**RIGHT, "form": "__import__('os')"}, "refused: \"__import__('os')\" uses more"),
        ({**RIGHT, "form": "k*m^(1/3)+a*b", "values": {"k": 3, "m": 4}}, "same letters"),
    ],
)
async def test_a_wrong_form_of_a_model_is_left_out(
    proposal: dict[str, Any], why: str, files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [completion(proposal)]
    kept, left_out = await rewrite(files, [a_task("2"), CUBE_ROOT], tools, endpoint.rewriter)
    assert (kept.how, left_out.how) == (How.KEPT, How.LEFT_OUT)
    assert left_out.reason.startswith("no rule: ")
    assert why in left_out.reason


@pytest.mark.anyio
@pytest.mark.parametrize(
    "bad",
    [
        (200, "not JSON"),
        (200, '{"choices": []}'),
        completion("I do not know."),
        completion('{"form": "k", "values": {"k": 1.5}, "ask": "k", "answer": 1}'),
        completion({**RIGHT, "extra": 1}),
        completion({**RIGHT, "values": {"k": 3, "m": 5}}),
    ],
    ids=lambda reply: reply[1][-40:],
)
async def test_a_bad_proposal_is_asked_for_once_more_with_chance(
    bad: Reply, files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [bad, completion(RIGHT)]
    [outcome] = await rewrite(files, [CUBE_ROOT], tools, endpoint.rewriter)
    assert outcome.how is How.MODEL, outcome.reason
    assert outcome.fields["answer"] == "7"
    first, second = endpoint.asked
    assert (first["temperature"], first["seed"]) == (0, 0)
    assert second["temperature"] > 0
    assert second["seed"] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failure_in_passing_is_sent_again_as_it_was(
    status: int, files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [(status, "later"), (status, "later"), completion(RIGHT)]
    [outcome] = await rewrite(files, [CUBE_ROOT], tools, endpoint.rewriter)
    assert outcome.how is How.MODEL, outcome.reason
    assert endpoint.asked[0] == endpoint.asked[2]


@pytest.mark.anyio
async def test_a_failure_that_stays_leaves_the_task_out(
    files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [(500, "broken")]
    [outcome] = await rewrite(files, [CUBE_ROOT], tools, endpoint.rewriter)
    assert outcome.how is How.LEFT_OUT
    assert "the model's endpoint answered 500: broken, 3 times" in outcome.reason
    assert len(endpoint.asked) == 3


@pytest.mark.anyio
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_request_is_the_fault_of_its_task_alone(
    status: int, files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [(status, "too\nlong"), completion(RIGHT)]
    tasks = [CUBE_ROOT, {**CUBE_ROOT, "id": "two"}]
    outcomes = await rewrite(files, tasks, tools, endpoint.rewriter)
    refused, taken = sorted(outcomes, key=lambda outcome: outcome.how is How.MODEL)
    assert refused.reason.endswith(f"the model's endpoint answered {status}: too long")
    assert taken.how is How.MODEL
    assert len(endpoint.asked) == 2


@pytest.mark.anyio
async def test_an_endpoint_that_is_gone_for_good_stops_the_work(
    files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script, rewriter = [completion(RIGHT)], endpoint.rewriter
    [taken] = await rewrite(files, [CUBE_ROOT], tools, rewriter)
    assert taken.how is How.MODEL
    rewriter.url = NOBODY
    with pytest.raises(RewriterError, match=r"cannot be reached .* any more; start it again"):
        await rewrite(files, [CUBE_ROOT, a_task("2")], tools, rewriter)


def test_what_was_finished_before_a_refusal_is_written(
    files: Files, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.script = [completion(RIGHT), (401, "expired")]
    assert files.rewrite(CUBE_ROOT, {**CUBE_ROOT, "id": "two"}) == 2
    assert [task["answer"] for task in files.written] == ["7"]
    report = capsys.readouterr().err
    assert "with 401: expired; check WEIR_REWRITER_URL" in report
    assert "\n0 kept as they are, 0 rewritten by rule, 1 by model, 0 left out\n" in f"\n{report}"
    assert report.endswith("out.jsonl holds the tasks finished before: 1\n")


@pytest.mark.anyio
async def test_a_model_that_is_too_slow_is_left_out(
    files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script, endpoint.delay_s = [completion(RIGHT)], 1.0
    rewriter = replace(endpoint.rewriter, timeout_s=0.2)
    [outcome] = await rewrite(files, [CUBE_ROOT], tools, rewriter)
    assert outcome.how is How.LEFT_OUT
    assert "did not answer within 0.2 s" in outcome.reason


@pytest.mark.anyio
async def test_an_answer_that_hangs_costs_its_own_deadline_only(
    files: Files, endpoint: Endpoint, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integers, "_EXAMINE_DEADLINE_S", 1.0)
    endpoint.script = [completion({"form": "k", "values": {"k": 9}, "ask": "k", "answer": 9})]
    tasks = [a_task(r"9^{9^{9^9}}"), a_task(r"\frac{1+\sqrt{5}}{2}", id="two")]
    hangs, sound = await rewrite(files, tasks, tools, endpoint.rewriter)
    assert hangs.how is How.LEFT_OUT
    assert "the model's form ends in a timeout" in hangs.reason
    assert sound.how is How.RULE


async def rewrite(
    files: Files,
    tasks: Sequence[dict[str, Any]],
    tools: Tools,
    rewriter: Rewriter | None = None,
) -> list[Outcome]:
    files.source.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    lines = list(read_lines(files.source))
    patient = Tools(tools.pool)  # a busy machine is no hard comparison
    return [outcome async for outcome in rewrite_all(lines, patient, rewriter)]


@pytest.mark.anyio
@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_endpoint_that_refuses_everything_stops_the_work(
    status: int, files: Files, endpoint: Endpoint, tools: Tools
) -> None:
    endpoint.script = [(status, "no")]
    says = f"refuses model 'rewriter' with {status}: no; check WEIR_REWRITER_URL"
    with pytest.raises(RewriterError, match=says):
        await rewrite(files, [a_task("2"), CUBE_ROOT], tools, endpoint.rewriter)
    assert len(endpoint.asked) == 1


def test_an_endpoint_that_is_not_there_stops_the_work(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEIR_REWRITER_URL", NOBODY)
    monkeypatch.setenv("WEIR_REWRITER_MODEL", "rewriter")
    assert files.rewrite(a_task("2"), CUBE_ROOT) == 2
    assert f"WEIR_REWRITER_URL={NOBODY} cannot be reached" in capsys.readouterr().err
    assert not files.target.exists()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"URL": NOBODY}, "WEIR_REWRITER_MODEL is not set, but WEIR_REWRITER_URL is"),
        ({"MODEL": "m"}, "WEIR_REWRITER_URL is not set, but WEIR_REWRITER_MODEL is"),
        ({"URL": "localhost:8000", "MODEL": "m"}, "WEIR_REWRITER_URL='localhost:8000': give a"),
        ({"URL": "http://:8000/v1", "MODEL": "m"}, "WEIR_REWRITER_URL='http://:8000/v1': give a"),
        ({"URL": "http://host:port", "MODEL": "m"}, "WEIR_REWRITER_URL='http://host:port': Inv"),
        ({"URL": "http://[::1", "MODEL": "m"}, "WEIR_REWRITER_URL='http://[::1': Invalid port"),
        ({"URL": NOBODY, "MODEL": "m", "API_KEY": "schlüssel"}, "WEIR_REWRITER_API_KEY holds"),
        ({"URL": NOBODY, "MODEL": "m", "API_KEY": "a\n"}, "WEIR_REWRITER_API_KEY holds"),
    ],
)
def test_settings_of_the_model_are_examined_before_the_work(
    environment: dict[str, str], message: str
) -> None:
    variables = {f"WEIR_REWRITER_{name}": value for name, value in environment.items()}
    with pytest.raises(RewriterError, match=re.escape(message)):
        Rewriter.from_environment(variables)


@pytest.mark.parametrize("content", [None, "", "{" * 50_001, '{"form": {}}', "{}{}", "\ud800"])
def test_a_reply_without_a_proposal_is_refused(content: str | None) -> None:
    with pytest.raises(NoProposal):
        read_proposal(content)


def test_the_last_object_of_a_reply_counts() -> None:
    first = json.dumps({**RIGHT, "answer": 1})
    reply = f"<think>{first}</think>Maybe {first}. No:\n```json\n{json.dumps(RIGHT)}\n```"
    assert read_proposal(reply).answer == 7


DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.anyio
@pytest.mark.skipif(not DATA.exists(), reason="needs task files in ../shared/data")
@pytest.mark.parametrize(
    ("name", "kept", "by_rule"), [("math500.jsonl", 314, 114), ("aime2024.jsonl", 30, 0)]
)
async def test_every_rewritten_task_of_the_task_files_verifies(
    name: str, kept: int, by_rule: int, files: Files, tools: Tools
) -> None:
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    tasks = [{"id": r["id"], "prompt": r["question"], "answer": r["answer"]} for r in rows]
    outcomes = await rewrite(files, tasks, tools)
    ways = [outcome.how for outcome in outcomes]
    assert (ways.count(How.KEPT), ways.count(How.RULE)) == (kept, by_rule)
    for outcome, task in zip(outcomes, tasks, strict=True):
        assert outcome.line.task is not None
        if outcome.how is How.LEFT_OUT:
            assert outcome.reason
        else:
            await assert_verifies(outcome, task, tools)


async def assert_verifies(outcome: Outcome, task: dict[str, Any], tools: Tools) -> None:
    """The new answer is an integer, and a form in named integers has the value of the old one."""
    assert str(int(outcome.fields["answer"])) == outcome.fields["answer"]
    assert outcome.fields["prompt"].startswith(task["prompt"])
    rebuilt = outcome.form.rebuilt() if outcome.form else outcome.fields["answer"]
    assert await math_answer.compare(task["answer"], rebuilt, tools) == Graded(value=1)
    if outcome.form:
        assert int(outcome.fields["answer"]) == sum(outcome.form.values.values())
