"""``weir data integers`` with a model: an endpoint that answers by a script."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.grader.data import integers
from services.grader.data.integers import How
from services.grader.data.rewriter import NoProposal, Rewriter, RewriterError, read_proposal
from services.grader.tools import Tools
from tests.unit.grader.task_files import CUBE_ROOT, Files, a_task, rewrite

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9/v1"
RIGHT = {"form": "k*m^(1/3)", "values": {"k": 3, "m": 4}, "ask": "k+m", "answer": 7}

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
