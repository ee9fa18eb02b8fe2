"""``weir data integers``: the answers that become integers, and the requests to the model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.data.__main__ import main
from tests.tables import table
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    replies,
    says,
    tells_right_from_wrong,
)

pytestmark = pytest.mark.anyio

Reply = tuple[str, str, int]
ROOT = r"\frac{11-2\sqrt{6}}{5}"
OF_ROOT = (r"\dfrac{k - m\sqrt{n}}{p}", "k = 11, m = 2, n=6, p = 5", 24)
ASKED = r"answer is $\dfrac{k - m\sqrt{n}}{p}$ with integers $k$, $m$, $n$, $p$. Find $k+m+n+p$."
PROBLEM = r"Find x if \(\sin bx=1\)."


def finds(formats: dict[str, Reply]) -> Behaviour:
    """The format of each answer; a request for another one is refused."""

    async def behave(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        reply = formats.get(body["messages"][-1]["content"].rpartition("Answer:\n")[2])
        form, values, total = reply or ("", "", 0)
        fields = {"analysis": "", "format": form, "integers": values, "answer": total}
        await (says(json.dumps(fields)) if reply else replies(b"", 400))(server, body, writer)

    return behave


async def rewrite(path: Path, *tasks: dict[str, Any], model: str = "") -> int:
    source = path / "tasks.jsonl"
    source.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    arguments = ["integers", str(source), str(path / "out.jsonl"), f"--model={model}"]
    return await asyncio.to_thread(main, arguments)


def read_written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    async with ScriptedServer() as server:
        monkeypatch.setenv("WEIR_JUDGE_URL", server.url)
        monkeypatch.setenv("WEIR_JUDGE_MODEL", "rewriter")
        monkeypatch.setenv("WEIR_JUDGE_CONCURRENCY", "1")
        yield server


@table(r"""
    answer             | form              | integers            | total | words
    -3/4               | -k/m              | k = 3, m = 4        | 7     | rewritten
    (2,\frac{\pi}{12}] | (k,\frac{\pi}{m}] | k = 2, m = 12       | 14    | rewritten
    12\sqrt{2}         | k m\sqrt{n}       | k = 1, m = 2, n = 2 | 5     | do not make
    \frac{\pi}{12}     | \frac{k\pi}{m}    | k = 1, m = 12       | 13    | do not make
    12{,}500\pi        |                   |                     | 0     | a decimal
    15\text{ cm}       | k                 | k = 15              | 15    | do not make
    2\pi               | k\pi              | k = 2, m = 5        | 7     | no format
    4^{3}\pi           | k^{m}\pi          | k = 4, m = 3        | 7     | other integers
    4^{\frac{3}{5}}    | 4^{\frac{k}{m}}   | k = 3, m = 5        | 8     | other integers
    12\sqrt{3}         | k2\sqrt{n}        | k = 1, n = 3        | 4     | do not make
    2\pi               | x\pi              | x = 2               | 2     | uses a letter
    2\pi               | b\pi              | b = 2               | 2     | uses a letter
    2\pi               | k\pi              | k = 2               | 3     | not the sum
    2\pi               |                   |                     | 0     | no reply
    2/4                | k/m               | k = 2, m = 4        | 6     | lowest terms
    -7                 |                   |                     | 0     | integer already
    0.67               |                   |                     | 0     | a decimal
    \text{East}        |                   |                     | 0     | in words
""")
async def test_only_integers_that_make_the_answer_are_used(
    server: ScriptedServer,
    answer: str,
    form: str,
    integers: str,
    total: int,
    words: str,
    tmp_path: Path,
    capsys: Any,
) -> None:
    server.script = [finds({answer: (form, integers, total)} if form else {})]
    task = {"id": "one", "prompt": PROBLEM, "answer": answer}
    assert await rewrite(tmp_path, task) == 0
    assert words in capsys.readouterr().out
    [task_after] = read_written(tmp_path)
    if words != "rewritten":
        assert task_after == task
    else:
        prompt = task_after["prompt"]
        assert prompt.startswith(f"{PROBLEM}\n\nIn simplest form the answer is ${form}$")
        assert task_after == task | {"prompt": prompt, "answer": str(total)}


async def test_an_interrupted_run_resumes(
    server: ScriptedServer, tmp_path: Path, capsys: Any
) -> None:
    refuses = replies(b"", 401)
    finding = finds({ROOT: OF_ROOT, r"2\pi": (r"$k\pi$", "k = 2", 2)})

    async def breaks(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        server.exam = refuses
        await refuses(server, body, writer)

    conversation = {"messages": [{"role": "user", "content": "Find x."}], "reference_answer": ROOT}
    tasks = [conversation, {"prompt": "y?", "answer": r"2\pi"}]
    server.script = [finding, breaks]
    assert await rewrite(tmp_path, *tasks) == 2
    await server.go_away()
    assert await rewrite(tmp_path, *tasks) == await rewrite(tmp_path, model="other") == 2
    error = capsys.readouterr().err
    for part in ("401", "run this again", "cannot be reached", "WEIR_JUDGES has no 'other'"):
        assert part in error
    with (tmp_path / "out.jsonl.replies").open("a") as file:
        file.write('\nnull\n["cut o')
    await server.come()
    server.script = [finding]
    server.exam = tells_right_from_wrong
    server.requests = []
    assert await rewrite(tmp_path, *tasks) == 0
    assert len(server.requests) == 1
    first, second = read_written(tmp_path)
    assert (first["reference_answer"], second["answer"]) == ("24", "2")
    assert ASKED in first["messages"][0]["content"]
    assert second["prompt"].startswith("y?\n\nIn simplest form the answer is $k\\pi$ with")
    assert not (tmp_path / "out.jsonl.replies").exists()
